"""Trainers: the steps are those of the bare loop, and erased factors are an error before the first step.

Each trainer sees the same batches in the same order; what it does on top (wrapping, accumulation, scaling)
must leave the weights where the bare loop leaves them.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

import trimtab
from structures import CASES, IDS
from trimtab.trainers import guard

build = CASES["pre-norm-transformer"].build
STEPS = 4


def parametrized():
    torch.manual_seed(0)
    model = build(32, 4)
    return model, trimtab.parametrize(model, build(16, 2), example=IDS)


def loss_of(model, step):
    ids = IDS.roll(step, 1)
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def plain_loop(p, model):
    """Warmup from 0, clipping, decay: what the trainers below are asked for."""
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    schedule = LambdaLR(optimizer, lambda t: t / STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        p.clip_grad_norm_(0.5)
        optimizer.step()
        schedule.step()
    return weights(model)


def weights(model):
    return {name: q.detach().clone() for name, q in model.named_parameters()}


def assert_close(found, wanted, tolerance=1e-6):
    assert found.keys() == wanted.keys()
    assert max(float((found[k] - wanted[k]).abs().max()) for k in wanted) <= tolerance


@pytest.fixture(scope="module")
def bare():
    model, p = parametrized()
    return plain_loop(p, model)


# -- the guard -----------------------------------------------------------------------------------------------


def test_a_plain_optimizer_is_an_error_before_its_first_step():
    model, p = parametrized()
    before = weights(model)
    with pytest.raises(trimtab.OptimizerError, match="mixes parameters"), guard(p):
        loss_of(model, 0).backward()
        torch.optim.AdamW(model.parameters(), lr=1e-2).step()
    assert_close(weights(model), before, 0.0)


def test_groups_that_lose_their_rates_later_are_seen():
    model, p = parametrized()
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2)
    with pytest.raises(trimtab.OptimizerError, match="must be one number"), guard(p, every=5):
        for step in range(20):
            loss_of(model, step).backward()
            optimizer.step()
            if step == 8:
                for group in optimizer.param_groups:
                    group["lr"] = 1e-2
    assert optimizer.state[next(iter(model.parameters()))]["step"] == 9


def test_with_the_plans_optimizer_it_changes_nothing_and_leaves_nothing_behind(bare):
    from torch.optim import optimizer as module

    hooks = len(module._global_optimizer_pre_hooks)
    model, p = parametrized()
    with guard(p):
        assert_close(plain_loop(p, model), bare, 0.0)
    assert len(module._global_optimizer_pre_hooks) == hooks


def test_other_models_are_left_alone_unless_nothing_else_is_trained():
    model, p = parametrized()
    other = torch.nn.Linear(3, 3)
    strange = torch.optim.SGD(other.parameters(), lr=0.1)
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2)
    with guard(p):
        strange.step()
        optimizer.step()
    with pytest.raises(trimtab.OptimizerError, match="SGD made steps and held none"), guard(p):
        strange.step()
    twin = copy.deepcopy(model)  # a wrapper that replaces parameters, and a trainer's own optimizer on them
    with pytest.raises(trimtab.OptimizerError, match="AdamW made steps and held none"), guard(p):
        torch.optim.AdamW(twin.parameters()).step()


def test_two_optimizers_of_one_plan():
    model, p = parametrized()
    muon = p.optimizer(torch.optim.Muon, lr=0.02, only="matrices")
    rest = p.optimizer(torch.optim.AdamW, lr=2e-3, only="rest")
    with guard(p):
        for step in range(2):
            loss_of(model, step).backward()
            muon.step()
            rest.step()


# -- what a loop may do --------------------------------------------------------------------------------------


def test_gradient_accumulation():
    """In float64: key biases have no gradient but rounding, which Adam makes steps of in float32."""
    (model, p), (twin, q) = parametrized(), parametrized()
    wanted = plain_loop(q, twin.double())
    model.double()
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    schedule = LambdaLR(optimizer, lambda t: t / STEPS)
    with guard(p):
        for step in range(STEPS):
            optimizer.zero_grad()
            ids = IDS.roll(step, 1)
            for part in ids.chunk(2):
                loss = F.cross_entropy(model(part).flatten(0, 1), part.flatten())
                (loss * len(part) / len(ids)).backward()
            p.clip_grad_norm_(0.5)
            optimizer.step()
            schedule.step()
    assert_close(weights(model), wanted)


def test_a_gradient_scaler_changes_nothing(bare):
    """Powers of two scale without rounding; unscaled before clipping."""
    model, p = parametrized()
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    schedule, scaler = (
        LambdaLR(optimizer, lambda t: t / STEPS),
        torch.amp.GradScaler("cpu", init_scale=2.0**10),
    )
    with guard(p):
        for step in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.unscale_(optimizer)
            p.clip_grad_norm_(0.5)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
    assert_close(weights(model), bare)


def test_autocast_trains_as_the_model_does_without_a_plan():
    """bf16 autocast at base size is plain torch, bit for bit: every factor is 1."""
    found = []
    for planned in (True, False):
        torch.manual_seed(0)
        model = build(32, 4)
        if planned:
            optimizer = trimtab.parametrize(model, copy.deepcopy(model), example=IDS).optimizer(
                torch.optim.AdamW, lr=1e-2
            )
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
        found.append(weights(model))
    assert_close(found[0], found[1], 0.0)


# -- trainers ------------------------------------------------------------------------------------------------


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    (model, p), (twin, q) = parametrized(), parametrized()
    model.double()
    wanted = plain_loop(q, twin.double())

    class Module(lightning.LightningModule):
        def __init__(self, optimizer):
            super().__init__()
            self.net, self.made = model, optimizer

        def training_step(self, batch, index):
            return loss_of(self.net, index)

        def configure_optimizers(self):
            optimizer = self.made(self.net)
            schedule = LambdaLR(optimizer, lambda t: t / STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def configure_gradient_clipping(self, optimizer, *_, **__):
            p.clip_grad_norm_(0.5, model=self.net)

    def fit(make):
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        with guard(p):
            trainer.fit(Module(make), torch.utils.data.DataLoader(torch.zeros(STEPS, 1)))

    fit(lambda net: p.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, model=net))
    assert_close(weights(model), wanted)
    with pytest.raises(trimtab.OptimizerError, match="mixes parameters"):
        fit(lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2))


def gpt(transformers, n, L):
    sizes = dict(n_embd=n, n_layer=L, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0)
    still = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **still))


def test_hugging_face_builds_and_clips_by_the_plan(tmp_path):
    """The Trainer's learning rate, decay, exemptions and max_grad_norm, on the plan's groups: the steps of a
    bare loop. Saved with save_pretrained and loaded again it is an ordinary model."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Mine(trimtab.trainers.HuggingFace, transformers.Trainer):
        pass

    def started():
        torch.manual_seed(0)
        model, base = gpt(transformers, 64, 4), gpt(transformers, 32, 2)
        p = trimtab.parametrize(model, base, example=dict(input_ids=ids))
        return model.double(), p  # in float64 the order of sums does not show

    def mean_loss(outputs, labels, num_items_in_batch=None):  # transformers' own is in float32
        return F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    ids = torch.randint(0, 64, (12, 16), generator=torch.Generator().manual_seed(1))
    options = dict(output_dir=str(tmp_path / "out"), max_steps=3, per_device_train_batch_size=4, use_cpu=True)
    quiet = dict(report_to=[], save_strategy="no", disable_tqdm=True)
    numbers = dict(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.5, lr_scheduler_type="constant")
    arguments = transformers.TrainingArguments(**options, **quiet, **numbers, optim="adamw_torch")
    data = [dict(input_ids=row, labels=row) for row in ids]
    model, p = started()
    more = dict(parametrization=p, compute_loss_func=mean_loss)
    trainer = Mine(model=model, args=arguments, train_dataset=data, **more)
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(data)
    with guard(p):
        trainer.train()

    twin, q = started()
    exempt = ["*.bias", "*ln_*"]
    optimizer = q.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay=exempt)
    for batch in ids.split(4):
        optimizer.zero_grad()
        mean_loss(twin(input_ids=batch), batch).backward()
        assert float(q.clip_grad_norm_(0.5)) > 0.5
        optimizer.step()
    assert_close(weights(model), weights(twin))

    model.save_pretrained(tmp_path / "saved")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved", dtype=torch.float64).eval()
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


def test_hugging_face_with_a_plain_optimizer_is_an_error_before_its_first_step(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Mine(trimtab.trainers.HuggingFace, transformers.Trainer):
        pass

    ids = torch.randint(0, 64, (8, 16))
    model = gpt(transformers, 64, 4)
    p = trimtab.parametrize(model, gpt(transformers, 32, 2), example=dict(input_ids=ids))
    before = weights(model)
    options = dict(output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], save_strategy="no")
    arguments = transformers.TrainingArguments(**options, disable_tqdm=True)
    data = [dict(input_ids=row, labels=row) for row in ids]
    own = (torch.optim.AdamW(model.parameters()), None)
    trainer = Mine(model=model, args=arguments, train_dataset=data, optimizers=own, parametrization=p)
    with pytest.raises(trimtab.OptimizerError, match="mixes parameters"):
        trainer.train()
    plain = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    with pytest.raises(trimtab.OptimizerError, match="mixes parameters"), guard(p):
        plain.train()
    assert_close(weights(model), before, 0.0)


@pytest.mark.filterwarnings("ignore:the model must start")
@pytest.mark.parametrize("how", ["model", "model_init"])
def test_hugging_face_with_a_model_that_was_never_rescaled_is_an_error(tmp_path, how):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Mine(trimtab.trainers.HuggingFace, transformers.Trainer):
        pass

    ids = torch.randint(0, 64, (8, 16))
    p = trimtab.parametrize(gpt(transformers, 64, 4), gpt(transformers, 32, 2), example=dict(input_ids=ids))
    options = dict(output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], save_strategy="no")
    arguments = transformers.TrainingArguments(**options, disable_tqdm=True)
    data = [dict(input_ids=row, labels=row) for row in ids]
    fresh = gpt(transformers, 64, 4) if how == "model" else lambda: gpt(transformers, 64, 4)
    trainer = Mine(**{how: fresh}, args=arguments, train_dataset=data, parametrization=p)
    with pytest.raises(trimtab.OptimizerError, match="fresh instance"):
        trainer.train()
