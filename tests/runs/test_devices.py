"""Devices without one: stand-ins take a GPU's place in `devices.KINDS`.

`Twin` computes on the processor and has what a GPU has of its own: a generator, a memory that is too small,
losses that are looked at now and then. `Hollow` is torch's meta device: it has no numbers, so whatever looks
at one raises.
"""

import json
import sqlite3

import pytest
import torch
from torch import nn

from trimtab.errors import InputError
from trimtab.runs import devices, fleet, fleet_graph, fleet_or_single, tasks
from trimtab.runs.checkpoints import BytesKeeper
from trimtab.runs.config import RunConfig
from trimtab.runs.devices import OutOfMemory
from trimtab.runs.training import Interrupted, Run, run
from trimtab.sweeps import grid, placement, worker
from trimtab.sweeps.attempts import Attempt
from trimtab.sweeps.driver import sweep
from trimtab.sweeps.store import Claim, Store

SMALL = RunConfig(width=8, depth=3, lr=0.05, steps=37, batch_size=16, eval_every=11, eval_examples=40)


class Twin(devices.Device):
    """A GPU that is the processor, but for its generator, its memory and when its losses are looked at."""

    kind = "cuda"
    look_every = 16
    generator = torch.Generator()
    room = 10**9  # elements of a fleet's weights that fit
    taken: list[int] = []
    seen = 2  # how many there are

    @classmethod
    def count(cls):
        return cls.seen

    @classmethod
    def take(cls, index):
        cls.taken.append(index)

    @property
    def torch(self):
        return torch.device("cpu")

    def seed(self, value):
        super().seed(value)
        self.generator.manual_seed(value)

    def own_random_state(self):
        return self.generator.get_state()

    def set_own_random_state(self, state):
        self.generator.set_state(state)


class Hollow(Twin):
    @property
    def torch(self):
        return torch.device("meta")


def put(monkeypatch, kind):
    monkeypatch.setitem(devices.KINDS, "cuda", kind)
    tasks._task.cache_clear()
    monkeypatch.setattr(kind, "taken", [])
    return kind


@pytest.fixture
def twin(monkeypatch):
    yield put(monkeypatch, Twin)
    tasks._task.cache_clear()


@pytest.fixture
def hollow(monkeypatch):
    yield put(monkeypatch, Hollow)
    tasks._task.cache_clear()


def numbers(result):
    return {k: v for k, v in result.row().items() if k != "seconds"}, {
        k: v.tolist() for k, v in result.curves.items() if k != "accuracy"
    }


# -- names ---------------------------------------------------------------------------------------------------


def test_cells_of_the_processor_keep_the_names_they_had():
    """Names of 2026-11-18, before devices and precision: a store of then must resume, not run again."""
    small = RunConfig(width=32, depth=3, lr=0.1)
    assert small.hash == "06e848846521e8db"
    assert small.replace(dtype="bfloat16").hash == small.replace(precision="bf16").hash == "a6f9d7df6ae62c72"
    other = RunConfig(width=64, depth=6, base=(32, 3), lr=0.1, optimizer="adamw", fleet=16, dtype="float64")
    assert other.hash == "b14ce32e2b5fa4a1"


def test_the_class_of_a_device_is_in_a_name_and_its_number_is_not():
    gpus = [SMALL.replace(device=name).hash for name in ("cuda", "cuda:0", "cuda:1")]
    assert len(set(gpus)) == 1 and gpus[0] != SMALL.hash


def test_auto_is_the_best_that_is_there(twin):
    assert devices.settle("auto") == "cuda" and Run(SMALL.replace(device="auto")).config.device == "cuda"
    twin.seen, before = 0, twin.seen
    try:
        assert devices.settle("auto") == "cpu"
        assert Run(SMALL.replace(device="auto")).config.hash == SMALL.hash
    finally:
        twin.seen = before


@pytest.mark.parametrize("device", ["cuda:2", "cuda:7", "mps"])
def test_a_device_that_is_not_there_is_refused_with_what_is(twin, device, tmp_path):
    with pytest.raises(InputError, match="there is cpu, cuda:0, cuda:1"):
        run(SMALL.replace(device=device))
    table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": {"device": device}}
    with pytest.raises(InputError, match="run.device.*there is cpu, cuda:0, cuda:1"):
        sweep(table, tmp_path / "a.db")
    assert not list(tmp_path.iterdir()), "something was begun"


def test_wrong_words_are_faults_of_the_file():
    for fields, law in {
        ("device", "gpu"): "nearest 'cpu'",
        ("device", "cpu:1"): "cuda:N",
        ("device", "cuda:x"): "cuda:N",
        ("precision", "fp16"): "known: float32, bf16",
    }.items():
        with pytest.raises(InputError, match=law):
            SMALL.replace(**dict([fields]))
    with pytest.raises(InputError, match="another way to say dtype"):
        RunConfig(width=8, depth=3, lr=0.1, dtype="float64", precision="bf16")
    with pytest.raises(InputError, match="mps has no float64"):
        SMALL.replace(device="mps", dtype="float64")


# -- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.05, 1e4], ids=["trains", "diverges"])
def test_losses_that_are_looked_at_now_and_then_are_the_same(twin, lr):
    """Rate 1e4 diverges between two looks: what was done after it is no part of the result."""
    config = SMALL.replace(lr=lr, clip=1e3, momentum=0.9)
    assert numbers(run(config.replace(device="cuda"))) == numbers(run(config))


def test_a_fleet_on_a_device_has_the_same_numbers(twin, tmp_path):
    configs = [SMALL.replace(lr=lr, fleet=16, optimizer="adamw") for lr in (0.01, 0.1, 1e6)]
    there = [c.replace(device="cuda") for c in configs]
    expected = [numbers(r) for r in fleet.run(configs)]
    assert [numbers(r) for r in fleet.run(there)] == expected
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        fleet.run(there, checkpoint=tmp_path / "c", stop=lambda: next(asked) == 21)  # between two looks
    assert [numbers(r) for r in fleet.run(there, checkpoint=tmp_path / "c")] == expected


def test_progress_hears_of_every_step_once(twin):
    heard = []
    run(SMALL.replace(device="cuda"), progress=lambda step, loss, lr: heard.append(step))
    assert heard == list(range(37))


@pytest.mark.parametrize("together", [False, True], ids=["run", "fleet"])
def test_a_run_on_a_device_is_looked_at_every_sixteen_steps(twin, monkeypatch, together):
    config = SMALL.replace(
        device="cuda", steps=48, eval_every=0, eval_examples=0, fleet=16 if together else 1
    )
    started = fleet.Fleet([config]) if together else Run(config)
    looks = []
    for name in ("item", "tolist", "__bool__", "__float__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda t, name=name, real=real: looks.append((name, t.numel())) or real(t)
        )
    started.go(30.0, None, None)
    rows = 16 if together else 1
    assert looks == [("tolist", 16 * rows)] * 3


def test_a_step_on_a_device_looks_at_no_number(hollow):
    """On meta `.item()`, `bool()` and `.tolist()` raise, and so do operations on two devices."""
    started = Run(SMALL.replace(device="cuda", clip=1.0, optimizer="adamw", schedule="cosine"))
    for step in range(3):
        assert started.step_unseen(step).is_meta
    assert all(p.is_meta for p in started.model.parameters())
    with pytest.raises(RuntimeError):
        started.step(3)


def test_a_fleets_step_on_a_device_looks_at_no_number(hollow, monkeypatch):
    # the one look, at the start
    monkeypatch.setattr(fleet_graph, "_equal_rows", lambda stacked: stacked.is_meta)
    started = fleet.Fleet(
        [SMALL.replace(device="cuda", lr=lr, clip=1.0, schedule="cosine", fleet=16) for lr in (0.1, 0.2)]
    )
    for step in range(3):
        assert started.step_unseen(step).is_meta


class Noisy(nn.Module):
    """Draws its noise on the device, from step `first` of its forwards on."""

    def __init__(self, first):
        super().__init__()
        self.inner, self.first, self.calls = nn.Linear(64, 10), first, 0

    def forward(self, x):
        self.calls, x = self.calls + self.training, x.flatten(1)
        if not self.training or self.calls <= self.first:
            return self.inner(x)
        kept = torch.rand(x.shape, generator=Twin.generator) > 0.2
        return self.inner(x * kept)


@pytest.mark.parametrize("first", [0, 9], ids=["from the start", "later, where no trial saw it"])
def test_dropout_on_a_device_resumes_where_it_was(twin, tmp_path, monkeypatch, first):
    monkeypatch.setattr(tasks.Task, "build", lambda self, width, depth: Noisy(first))
    config = SMALL.replace(device="cuda", scheme="sp", eval_every=0, eval_examples=0)
    whole = run(config).curves["loss"].tolist()
    torch.rand(5, generator=Twin.generator)  # what others draw in between is nothing to it
    assert run(config).curves["loss"].tolist() == whole
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        run(config, checkpoint=tmp_path / "c", stop=lambda: next(asked) == 20)
    torch.rand(5, generator=Twin.generator)
    resumed = Run(config, tmp_path / "c")
    assert len(resumed.losses) == 20
    resumed.model.calls = 20
    assert resumed.go(30.0, None, None).curves["loss"].tolist() == whole
    assert tasks.open_task(config).random == (first == 0)


def test_generators_are_left_as_they_were(twin):
    before, own = torch.get_rng_state(), Twin.generator.get_state()
    run(SMALL.replace(device="cuda"))
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(Twin.generator.get_state(), own)


def test_bf16_is_autocast_over_float32_weights():
    config = SMALL.replace(steps=30, precision="bf16")
    started = Run(config)
    kinds = set()
    for module in started.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, i, out: kinds.add(out.dtype))
    low = started.go(30.0, None, None)
    assert kinds == {torch.bfloat16} and {p.dtype for p in started.model.parameters()} == {torch.float32}
    full = run(SMALL.replace(steps=30))
    ratio = low.curves["loss"] / full.curves["loss"]
    # 8 bits: each loss within a few times 2^-8 of float32's, and not the same numbers
    assert low.state == "done" and 0 < abs(ratio - 1).max() < 16 / 256
    assert "bfloat16" in fleet_or_single.choose(config).reason


# -- memory --------------------------------------------------------------------------------------------------


@pytest.fixture
def cramped(twin, monkeypatch):
    """A device on which a fleet's weights may have at most `room` elements."""
    real = fleet.Fleet._descend

    def descend(self, step, losses):
        if self.theta.numel() > twin.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(self, step, losses)

    monkeypatch.setattr(fleet.Fleet, "_descend", descend)
    elements = fleet.Fleet([SMALL.replace(device="cuda", fleet=16)]).theta.numel() // 16

    def only(rows):
        monkeypatch.setattr(twin, "room", rows * elements)

    return only


@pytest.mark.parametrize("rows, slots", [(40, 32), (16, 16), (3, 1)])
def test_out_of_memory_names_the_fleet_that_fits(cramped, rows, slots):
    cramped(rows)
    configs = [SMALL.replace(device="cuda", lr=lr, fleet=64) for lr in (0.05, 0.1)]
    with pytest.raises(OutOfMemory, match=rf"64 rows of mlp.* fleet = {slots} fits"):
        fleet.run(configs)
    if slots > 1:
        assert [r.state for r in fleet.run([c.replace(fleet=slots) for c in configs])] == ["done", "done"]


def test_a_run_that_does_not_fit_alone_says_so(twin, monkeypatch):
    def full(self, loss):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Run, "_update", full)
    with pytest.raises(OutOfMemory, match="width 8 and depth 3 with batches of 16 does not fit"):
        run(SMALL.replace(device="cuda"))


def test_a_unit_that_does_not_fit_fails_with_these_words_and_is_not_taken_apart(cramped, monkeypatch):
    cramped(20)
    configs = [SMALL.replace(device="cuda", lr=lr, fleet=64) for lr in (0.05, 0.1)]
    claim = Claim("u", True, ("a", "b"), tuple(c.model_dump(mode="json") for c in configs), (1, 1), 1)
    budget = {"cell_seconds": 600.0, "retries": 0, "checkpoint_seconds": 3600.0}
    ended = Attempt(claim, BytesKeeper(None, lambda content: None), budget, {}).run()
    assert [(o[0], o[1]) for o in ended.outcomes] == [("a", "failed"), ("b", "failed")]
    assert all("fleet = 16 fits" in o[4] and "Traceback" not in o[4] for o in ended.outcomes)


def test_memory_does_not_decide_what_a_cell_is(twin, monkeypatch):
    """Out of memory while slots are chosen stops the sweep; it must not quietly become fleet = 1."""
    from trimtab.sweeps.units import choose_slots

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(fleet_or_single, "_large", full)
    with pytest.raises(InputError, match="ran out of memory.*fleet = 1"):
        choose_slots([SMALL.replace(device="cuda")], "auto")


# -- sweeps --------------------------------------------------------------------------------------------------


def test_workers_are_dealt_the_devices_in_turn_or_the_one_named(twin):
    for slot in range(5):
        worker.take_device(slot, ["cuda"], None)
    worker.take_device(4, ["cuda"], 1)
    worker.take_device(0, ["cpu"], None)
    assert twin.taken == [0, 1, 0, 1, 0, 1]


def test_a_slot_is_free_again_when_its_worker_has_gone(tmp_path):
    from trimtab.sweeps.engines.job import Job
    from trimtab.sweeps.engines.local import Local

    config = grid.read({"base": [8, 3], "axes": {"lr": [0.1]}})
    engine = Local(Job(tmp_path / "a.db", "me", config, workers=3, threads=1, say=print))
    orders = []
    engine._order = orders.append
    engine.fill(9)
    del engine.alive["me/2"]
    engine.fill(9)
    assert orders == ["spawn me/1 0", "spawn me/2 1", "spawn me/3 2", "spawn me/4 1"]


def test_a_sweeps_cells_are_named_by_the_class_and_the_number_is_kept_apart(twin):
    table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}}
    for named, kept in {"cuda": None, "cuda:1": 1, "auto": None}.items():
        made = placement.settle(grid.read(table | {"run": {"device": named}}))
        assert (made.run["device"], made.gpu, placement.classes(made)) == ("cuda", kept, ("cuda",))
    axis = {"axes": {"lr": [0.1], "device": ["cpu", "cuda:1"]}}
    made = placement.settle(grid.read(table | axis))
    assert made.axes["device"] == ("cpu", "cuda") and made.gpu == 1
    for same in (["cuda:0", "cuda:1"], ["auto", "cpu"]):
        with pytest.raises(InputError, match="axes.device"):
            grid.read(table | {"axes": {"lr": [0.1], "device": same}})


def test_a_cluster_may_have_what_this_machine_has_not():
    table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}}
    there = placement.settle(grid.read(table | {"run": {"device": "cuda"}}), remote=True)
    assert placement.classes(there) == ("cuda",)
    with pytest.raises(InputError, match="name the nodes' device"):
        placement.settle(grid.read(table | {"run": {"device": "auto"}}), remote=True)


def test_a_sweep_of_before_is_resumed_by_one_that_names_its_device_and_precision(tmp_path):
    """`auto` where there is no GPU, and precision = "float32", are the cells that a file without them has."""
    table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": {"steps": 4, "eval_examples": 0}}
    path = tmp_path / "a.db"
    sweep(table, path, workers=1)
    if devices.settle("auto") != "cpu":
        pytest.skip("there is a GPU here: auto is another class of device")
    sweep(table | {"run": table["run"] | {"device": "auto", "precision": "float32"}}, path, workers=1)
    ((count, accepted),) = sqlite3.connect(path).execute("SELECT COUNT(*), SUM(accepted) FROM cells")
    assert (count, accepted) == (1, 1)
    (text,) = sqlite3.connect(path).execute("SELECT config FROM cells").fetchone()
    assert json.loads(text)["device"] == "cpu" and "precision" not in json.loads(text)


def test_precision_is_an_axis(tmp_path):
    axes = {"lr": [0.1], "precision": ["float32", "bf16"]}
    table = {"base": [8, 3], "seeds": 1, "axes": axes, "run": {"steps": 4, "eval_examples": 0}, "fleet": 1}
    sweep(table, tmp_path / "a.db", workers=1)
    frame = Store(tmp_path / "a.db").to_pandas()
    assert sorted(frame.dtype) == ["bfloat16", "float32"] and frame.train_loss.nunique() == 2


# -- what torch is asked on a GPU, by name -------------------------------------------------------------------


def test_cuda_is_asked_for_its_own_generator_its_own_memory_and_pinned_copies(monkeypatch):
    asked = []

    def note(name, answer=None):
        return lambda *given, **more: asked.append((name, *map(str, given))) or answer

    state = torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", note("get", state))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, d: asked.append(("set", str(d))))
    monkeypatch.setattr(torch.cuda, "mem_get_info", note("memory", (2**30, 2**31)))
    monkeypatch.setattr(torch.cuda, "set_device", note("take"))
    gpu = devices.Cuda(1)
    with gpu.forked():
        pass
    assert devices.describe_memory(gpu) == "cuda:1 (1.0 of 2.0 GiB free)"
    gpu.take(1)
    assert asked == [("get", "cuda:1"), ("set", "cuda:1"), ("memory", "cuda:1"), ("take", "1")]

    class Host(torch.Tensor):  # a tensor on the processor that says what is asked of it
        def pin_memory(self):
            asked.append("pin")
            return self

        def to(self, place, *rest, non_blocking=False):
            asked.append((str(place), non_blocking))
            return self

    asked.clear()
    gpu.move(torch.zeros(3).as_subclass(Host), torch.float32)
    assert asked == ["pin", ("cuda:1", True), ("cuda:1", False)]
