"""The lives of a model: after each wrapper three AdamW steps are those of the unwrapped model."""

import copy
import shutil
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import trimtab
from structures import CASES, IDS

build = CASES["pre-norm-transformer"].build


def parametrized(depth=4):
    torch.manual_seed(0)
    model = build(32, depth)
    return model, trimtab.parametrize(model, build(16, depth // 2), example=IDS)


def three_steps(model, optimizer, forward=None):
    for step in range(3):
        ids = IDS.roll(step, 1)
        optimizer.zero_grad()
        F.cross_entropy((forward or model)(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()


def weights(model):
    return {
        k.removeprefix("module.").removeprefix("_orig_mod."): v.detach().clone()
        for k, v in model.named_parameters()
    }


@pytest.fixture
def plain():
    model, p = parametrized()
    three_steps(model, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
    return weights(model)


def close(a, b, tolerance=0.0):
    return a.keys() == b.keys() and all((a[k] - b[k]).abs().max() <= tolerance for k in a)


def test_deepcopy(plain):
    model, p = parametrized()
    twin = copy.deepcopy(model)
    three_steps(twin, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, model=twin))
    assert close(weights(twin), plain)


def test_state_dict_and_json(plain, tmp_path):
    model, p = parametrized()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    resumed = build(32, 4)
    resumed.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    q = trimtab.Parametrization.from_json(p.to_json())
    three_steps(resumed, q.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, model=resumed))
    assert close(weights(resumed), plain)


def test_average_of_the_weights(plain):
    model, p = parametrized()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.0)
    )
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    three_steps(model, optimizer)
    average.update_parameters(model)
    assert close(weights(model), plain)
    assert close(weights(average), plain)


def test_gradient_checkpointing(plain):
    model, p = parametrized()

    def forward(ids):
        h = model.embed(ids) + model.pos(torch.arange(ids.shape[1]))
        for layer in model.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return model.head(model.norm(h))

    three_steps(model, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1), forward)
    assert close(weights(model), plain)


def test_compile_fullgraph(plain):
    model, p = parametrized()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    three_steps(compiled, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, model=compiled))
    assert close(weights(compiled), plain, 1e-6)


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler"
)
def test_compile_with_inductor(tmp_path, monkeypatch):
    """The default backend, in float64: its kernels sum in another order, so equal to 1e-6 of each tensor's
    size. With a cache of its own: inductor's shared one offers kernels made for other instruction sets."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    runs = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, fullgraph=True)):
        model, p = parametrized(depth=2)  # a cold compile takes its time for every block
        compiled = wrap(model.double())
        three_steps(compiled, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, model=compiled))
        runs.append(weights(compiled))
    for name, once in runs[0].items():
        assert (once - runs[1][name]).abs().max() <= 1e-6 * once.abs().max(), name


def test_meta_then_materialised(plain):
    with torch.device("meta"):
        empty = build(32, 4)
    torch.manual_seed(0)
    model = build(32, 4)
    p = trimtab.parametrize(empty, build(16, 2), example=IDS, apply=False)
    p.apply(model)
    three_steps(model, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
    assert close(weights(model), plain)


def _process(rank, port, how, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, p = parametrized()
    if how == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, model=wrapped)
    norms = []
    for step in range(3):
        ids = IDS.roll(step, 1)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(ids).flatten(0, 1), ids.flatten()).backward()
        norms.append(float(p.clip_grad_norm_(1e9, model=wrapped)))
        optimizer.step()
    p.check(optimizer)
    full = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v) for k, v in weights(wrapped).items()}
    if rank == 0:
        torch.save((full, norms), path)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("how", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp2"])
def test_two_processes_equal_one(how, plain, tmp_path):
    """Both processes see the same batch, so the averaged gradient is the one of a single process."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(_process, args=(port, how, tmp_path / "out.pt"), nprocs=2, start_method="spawn")
    full, norms = torch.load(tmp_path / "out.pt", weights_only=True)
    assert close(full, plain, 1e-6)
    model, p = parametrized()
    F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten()).backward()
    assert norms[0] == pytest.approx(float(p.clip_grad_norm_(1e9)), rel=1e-5)


class Heads(torch.nn.Module):
    """An auxiliary head of the same shape, met before the head, and called like it from the end."""

    def __init__(self, n):
        super().__init__()
        self.stem = torch.nn.Linear(6, n)
        self.aux = torch.nn.ModuleDict({"head": torch.nn.Linear(n, 5)})
        self.head = torch.nn.Linear(n, 5)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        return self.head(h), self.aux["head"](h)


class Holder(torch.nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_inside_a_holder_every_parameter_is_found_once():
    model = Heads(32)
    p = trimtab.parametrize(model, Heads(16), example=torch.randn(3, 6))
    found = p.named_parameters(Holder(net=model))
    assert {name: id(q) for name, q in found.items()} == {name: id(q) for name, q in model.named_parameters()}
    groups = p.groups(torch.optim.AdamW, lr=1e-2, model=Holder(net=model))
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


def test_of_two_copies_the_parametrized_one_is_taken_or_none():
    model = Heads(32)
    p = trimtab.parametrize(model, Heads(16), example=torch.randn(3, 6))
    ema = copy.deepcopy(model).requires_grad_(False)
    found = p.named_parameters(Holder(ema=ema, net=model))
    assert all(found[name] is q for name, q in model.named_parameters())
    resumed = trimtab.Parametrization.from_json(p.to_json())
    with pytest.raises(trimtab.InputError, match="copies in Holder.*ema, net"):
        resumed.named_parameters(Holder(ema=ema, net=model))


def test_parameters_added_later_are_not_left_untrained():
    model = Heads(32)
    p = trimtab.parametrize(model, Heads(16), example=torch.randn(3, 6))
    model.adapter = torch.nn.Linear(32, 4)
    with pytest.raises(trimtab.InputError, match="2 have no factors, the first is adapter.weight"):
        p.optimizer(torch.optim.AdamW, lr=1e-2)
    assert p.optimizer(torch.optim.AdamW, lr=1e-2, only=lambda row: True)
    model.adapter.requires_grad_(False)
    assert p.optimizer(torch.optim.AdamW, lr=1e-2)


# -- trainers ------------------------------------------------------------------------------------------------


def test_accelerate(plain):
    """Its wrapped optimizer and model: checked, clipped and trained as without."""
    accelerate = pytest.importorskip("accelerate")
    model, p = parametrized()
    accelerator = accelerate.Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
    assert type(optimizer).__name__ == "AcceleratedOptimizer"
    rates = [g["lr"] for g in optimizer.param_groups]
    assert p.lrs(optimizer, 1e-2) == pytest.approx(rates)
    for step in range(3):
        ids = IDS.roll(step, 1)
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(wrapped(ids).flatten(0, 1), ids.flatten()))
        assert float(p.clip_grad_norm_(1e9, model=wrapped)) > 0
        optimizer.step()
        p.check(optimizer)
    assert close(weights(model), plain)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    with pytest.raises(trimtab.OptimizerError, match="must be one number"):
        p.check(optimizer)


def test_hugging_face_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def gpt(n, L):
        sizes = dict(
            n_embd=n, n_layer=L, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))

    torch.manual_seed(0)
    model = gpt(64, 4)
    ids = torch.randint(0, 64, (8, 16))
    p = trimtab.parametrize(model, gpt(32, 2), example=dict(input_ids=ids))
    optimizer = p.optimizer(
        torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay=lambda row: len(row.shape) < 2
    )
    norms = []

    class Watch(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **more):
            norms.append(
                (float(p.clip_grad_norm_(0.5, model=model)), float(p.clip_grad_norm_(0.5, model=model)))
            )

        def on_step_end(self, args, state, control, model=None, optimizer=None, **more):
            p.check(optimizer)

    options = dict(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [dict(input_ids=row, labels=row) for row in ids]
    arguments = transformers.TrainingArguments(**options, max_grad_norm=0)
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[Watch()]
    )
    trainer.train()
    assert len(norms) == 3 and all(
        before > 0.5 and after == pytest.approx(0.5, rel=1e-3) for before, after in norms
    )
    p.check(trainer.optimizer)
    own = transformers.Trainer(
        model=model, args=transformers.TrainingArguments(**options), train_dataset=data
    )
    with pytest.raises(trimtab.OptimizerError, match="mixes parameters"):
        p.check(own.create_optimizer())
