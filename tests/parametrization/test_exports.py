"""Exports in other tools' words: what each tool reads is what the parametrization says, for every family.

Each reader here is written anew from the tool's own rules, or is the tool itself where it is installed.
"""

import fnmatch
import json
import re

import pytest
import torch

import trimtab
from structures import CASES, IDS

AdamW = torch.optim.AdamW
LR, WD, EPS = 3e-4, 0.1, 1e-9
TOOLS = ("torchtitan", "deepspeed", "megatron", "optax", "json")


def expected(p, cls=AdamW, **hyper):
    """The numbers by the contract: the base's times p.factors."""
    return {
        name: {"lr": LR * f["lr"], "weight_decay": WD * f["weight_decay"], "eps": EPS * f["eps"]}
        for name, f in p.factors(cls, **hyper).items()
    }


def first_match(entries, name):
    for entry in entries:
        if re.compile(entry["pattern"]).search(name):
            assert entry["optimizer_name"] == "AdamW"
            return entry["optimizer_kwargs"]
    raise AssertionError(name)


def by_torchtitan(out, name):
    return first_match(out.data, name)


def by_deepspeed(out, name):
    return next(g for g in out.data["groups"] if name in g["names"])


def by_megatron(out, name):
    fits = [e["override"] for e in out.data["overrides"] if any(fnmatch.fnmatch(name, n) for n in e["name"])]
    assert len(fits) == 1, name  # keys that both fit would be combined
    return {"lr": fits[0]["max_lr"], "weight_decay": WD * fits[0]["wd_mult"], "eps": fits[0]["eps"]}


def by_optax(out, name):
    n = out.data["transforms"][out.data["labels"][name]]
    return {"lr": n["learning_rate"], "weight_decay": n["weight_decay"], "eps": n["eps"]}


def by_json(out, name):
    return json.loads(out.text)["parameters"][name]


READERS = dict(zip(TOOLS, (by_torchtitan, by_deepspeed, by_megatron, by_optax, by_json), strict=True))


def reads_back(p, tools=TOOLS):
    wanted = expected(p)
    for name in wanted:
        wanted[name]["weight_decay"] *= not p[name].offset
    for tool in tools:
        out = p.export(tool, AdamW, LR, weight_decay=WD, eps=EPS, no_decay=lambda row: row.offset)
        assert out.numbers.keys() == wanted.keys()
        for name, numbers in wanted.items():
            got = READERS[tool](out, name)
            for key, x in numbers.items():
                assert got[key] == pytest.approx(x, rel=1e-12, abs=0), (tool, name, key)
                assert out.numbers[name][key] == pytest.approx(x, rel=1e-12, abs=0), (tool, name, key)
        if tool in ("optax", "json"):
            starts = {name: out.numbers[name]["init"] for name in wanted}
            assert starts == pytest.approx({name: p[name].init for name in wanted})
        else:
            assert any("init" in line for line in out.lost)


def family_names():
    try:
        from families import FAMILIES
    except ImportError:
        return []
    return list(FAMILIES)


SLOW = ("regnet", "bart", "swin")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in family_names()]
    or [pytest.param("", marks=pytest.mark.skip("no [hf]"))],
)
def test_every_family_reads_back(name):
    from families import FAMILIES

    build, example, _, _ = FAMILIES[name]
    with torch.device("meta"):
        model = build(64, 4)
    if name in ("swin", "mamba", "resnet", "resnet-bottleneck", "regnet", "convnext"):  # traced with numbers
        model = build(64, 4)
    p = trimtab.parametrize(model, build(32, 2), example=example, apply=False)
    reads_back(p)


@pytest.fixture(scope="module")
def transformer():
    build = CASES["pre-norm-transformer"].build
    torch.manual_seed(0)
    model = build(32, 4)
    return model, trimtab.parametrize(model, build(16, 2), example=IDS)


def test_all_tools_on_one_model(transformer):
    reads_back(transformer[1])


def test_numbers_are_those_of_the_groups_that_train(transformer):
    """What is exported and what p.optimizer trains with, by name, with decay and horizon set."""
    model, p = transformer
    q = trimtab.Parametrization.from_json(p.to_json())
    options = dict(weight_decay=0.1, no_decay=lambda row: len(row.shape) < 2, betas=(0.9, 0.95))
    options |= dict(horizon=trimtab.Horizon(batch=4.0), decay="value")
    names = {id(w): name for name, w in model.named_parameters()}
    groups = q.groups(AdamW, lr=LR, model=model, **options)
    trained = {names[id(w)]: g for g in groups for w in g["params"]}
    for tool in TOOLS:
        out = q.export(tool, AdamW, LR, **options)
        for name, group in trained.items():
            for key in ("lr", "weight_decay", "eps"):
                assert out.numbers[name][key] == pytest.approx(group[key], rel=1e-12, abs=0), (tool, name)
    titan = q.export("torchtitan", AdamW, LR, **options).data
    assert first_match(titan, "head.weight")["betas"] == trained["head.weight"]["betas"] != (0.9, 0.95)


# -- torchtitan ----------------------------------------------------------------------------------------------


def test_patterns_match_their_own_names_alone(transformer):
    """In any order, with names that contain one another, and inside checkpoint wrappers."""
    _, p = transformer
    entries = p.export("torchtitan", lr=LR).data
    names = list(p)
    for entry in entries:
        own = [n for n in names if re.search(entry["pattern"], n)]
        assert own and all(first_match(entries[::-1], n) is entry["optimizer_kwargs"] for n in own)
        for n in own:
            assert not re.search(entry["pattern"], "aux." + n) and not re.search(entry["pattern"], n + "_b")
            assert not re.search(entry["pattern"], n.replace(".", "x", 1))
    inside = "layers.1._checkpoint_wrapped_module.ff.2.weight"
    plain = "layers.1.ff.2.weight"
    if plain in names:
        assert first_match(entries, inside) is first_match(entries, plain)


def test_what_a_tool_cannot_build_is_refused(transformer):
    _, p = transformer
    with pytest.raises(trimtab.OptimizerError, match="torchtitan builds AdamW and Adam.*p.groups"):
        p.export("torchtitan", torch.optim.SGD, lr=0.1)
    with pytest.raises(trimtab.OptimizerError, match="optax export knows.*json"):
        p.export("optax", torch.optim.RMSprop, lr=0.1)
    with pytest.raises(trimtab.OptimizerError, match="no word for amsgrad=True"):
        p.export("optax", lr=0.1, amsgrad=True)
    with pytest.raises(trimtab.OptimizerError, match="adam is AdamW"):
        p.export("megatron", torch.optim.Adam, lr=0.1)
    with pytest.raises(trimtab.InputError, match="export knows torchtitan.*'fairscale'"):
        p.export("fairscale")
    with pytest.raises(trimtab.InputError, match="lr must be"):
        p.export("json", lr=-1.0)


# -- DeepSpeed -----------------------------------------------------------------------------------------------


def zero(optimizer):
    """What ZeRO does to an optimizer: each group's tensors become one flat piece, its other keys stay."""
    for group in optimizer.param_groups:
        group["params"] = [torch.nn.Parameter(torch.cat([w.detach().flatten() for w in group["params"]]))]
    return optimizer


def test_deepspeed_groups_train_and_are_checked_under_zero(transformer):
    model, p = transformer
    out = p.export("deepspeed", lr=LR, weight_decay=WD)
    scope = {}
    exec(out.text, scope)
    groups = scope["param_groups"](model)
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    params = scope["CONFIG"]["optimizer"]["params"]
    assert params["lr"] == LR and json.loads(json.dumps(scope["CONFIG"])) == scope["CONFIG"]
    optimizer = AdamW(groups, lr=params["lr"], betas=tuple(params["betas"]))
    p.check(optimizer)
    p.check(zero(optimizer))
    for group in optimizer.param_groups:  # WarmupLR(warmup_max_lr=x)
        group["lr"] = LR
    with pytest.raises(trimtab.OptimizerError, match="lr divided by its factor must be one number"):
        p.check(optimizer)
    plain = zero(AdamW(model.parameters(), lr=LR))
    with pytest.raises(trimtab.OptimizerError, match="not of the parametrized model"):
        p.check(plain)
    assert (
        p.export("deepspeed", torch.optim.Adam, LR).data["config"]["optimizer"]["params"]["adam_w_mode"]
        is False
    )


# -- Megatron-LM ---------------------------------------------------------------------------------------------


def flags_of(**options):
    build = CASES["pre-norm-transformer"].build
    p = trimtab.parametrize(build(64, options.pop("depth", 2)), build(16, 2), example=IDS, **options)
    return p.export("megatron", lr=LR, weight_decay=WD)


def test_megatron_flags_say_what_they_cannot_say():
    deep = flags_of(depth=8, scheme="completep")
    assert any("depth ratio 4" in line for line in deep.lost)
    wide = flags_of(scheme="mup")
    assert wide.data["flags"]["--use-mup"] is True and wide.data["flags"]["--mup-base-hidden-size"] == 16
    assert "--use-mup" not in wide.data["arguments"]
    assert any(
        "weight_decay of" in line and "overrides" in line for line in wide.lost
    )  # it keeps wd, not lr wd
    assert not any("lr of" in line and "head" in line for line in wide.lost)
    lazy = flags_of(scheme="ntk")
    assert "--use-mup" not in lazy.data["flags"] and any("has muP and nothing else" in x for x in lazy.lost)


# -- optax ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "hyper"),
    [
        (AdamW, dict(weight_decay=0.1, betas=(0.9, 0.95))),
        (torch.optim.Adam, dict(weight_decay=0.01)),
        (torch.optim.SGD, dict(weight_decay=0.01, momentum=0.9, nesterov=True)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_optax_takes_the_steps_of_torch(transformer, cls, hyper):
    """The text as it is, on the same gradients as torch's own optimizer, in float64."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    optax = pytest.importorskip("optax", reason="optax is not installed")
    model, p = transformer
    scope = {}
    exec(p.export("optax", cls, 1e-2, **hyper).text, scope)
    twin = {name: torch.nn.Parameter(w.detach().double()) for name, w in model.named_parameters()}
    names = {id(w): name for name, w in model.named_parameters()}
    groups = p.groups(cls, lr=1e-2, **hyper)
    there = cls([g | {"params": [twin[names[id(w)]] for w in g["params"]]} for g in groups], lr=1e-2, **hyper)
    with jax.enable_x64(True):
        params = {name: jax.numpy.asarray(w.detach().numpy()) for name, w in twin.items()}
        optimizer = scope["build"]()
        state = optimizer.init(params)
        for step in range(3):
            torch.manual_seed(step)
            for w in twin.values():
                w.grad = torch.randn_like(w)
            grads = {name: jax.numpy.asarray(w.grad.numpy()) for name, w in twin.items()}
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            there.step()
        for name, w in twin.items():
            assert abs(torch.tensor(params[name].tolist(), dtype=torch.float64) - w.detach()).max() < 1e-10, (
                name
            )


def test_optax_labels_without_optax(transformer):
    """The label of every leaf, where jax is not installed: the mapping of the text, executed."""
    _, p = transformer
    text = p.export("optax", lr=LR).text
    scope = {}
    exec(text[text.index("LABELS") : text.index("def transform")], scope)
    assert scope["LABELS"].keys() == set(p)
    assert all(scope["NUMBERS"][label]["learning_rate"] > 0 for label in scope["LABELS"].values())
    assert scope["INIT"] == {name: p[name].init for name in p if p[name].init != 1}
