"""What trimtab uses of torch that is not public: each use works as it did, or the message says what torch
changed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import trimtab
from trimtab import torch_internals as internals
from trimtab.models.builders import BUILD
from trimtab.structure import operations

aten = torch.ops.aten
PACKAGE = Path(trimtab.__file__).parent
# Attributes of modules, operations and storages that torch does not document.
PRIVATE = {"_modules", "_parameters", "_buffers", "_schema", "_cdata", "_NormBase", "_version", "_base"}


class Names(internals.DispatchMode):
    """The names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(internals.operation_name(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_operations_below_autograd():
    x = torch.ones(2, 3)
    with Names() as names:
        nn.functional.linear(x, torch.ones(4, 3), torch.ones(4))
    assert "addmm" in names.seen, (
        f"torch's dispatch mode no longer shows a linear layer as addmm, it shows {names.seen}: "
        "teach structure/recorder.py the new form"
    )


COUNTED = {
    "mlp": lambda: (zoo("mlp", 16, 3), torch.ones(4, 64)),
    "resnet": lambda: (zoo("resnet", 8, 3), torch.ones(2, 3, 8, 8)),
    "vit": lambda: (zoo("vit", 16, 2, image=8, patch=4, heads=2), torch.ones(2, 3, 8, 8)),
    "gpt": lambda: (zoo("gpt", 16, 2, vocabulary=9, context=8, heads=2), torch.zeros(2, 8, dtype=torch.long)),
    "torch's transformer": lambda: (nn.TransformerEncoderLayer(16, 2, 32), torch.ones(5, 2, 16)),
    "a recurrence": lambda: (nn.GRUCell(8, 8), torch.ones(5, 8)),
}


def zoo(name, *size, **options):
    return BUILD[name](*size, **options)


@pytest.mark.parametrize("name", COUNTED)
def test_the_count_of_operations_is_that_of_torch(name):
    model, x = COUNTED[name]()
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model(x)
        found = internals.count_flops(lambda: model(x))
    assert found == counter.get_total_flops() > 0, (
        "torch's FlopCounterMode counts otherwise than torch_internals.count_flops: follow it"
    )


def test_counting_operations_does_not_load_the_compiler():
    code = (
        "import sys, torch\nfrom trimtab.torch_internals import count_flops\n"
        "assert count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5)) == 60\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_schema_says_what_an_operation_is_called_and_writes():
    in_place, plain = aten.add_.Tensor, aten.add.Tensor
    named = [internals.operation_name(op) for op in (in_place, plain)]
    assert named == ["add_", "add"], f"torch's schemas no longer name operations: got {named}"
    writes = [internals.writes_first(op) for op in (in_place, plain)]
    assert writes == [True, False], (
        f"torch's schemas no longer say which argument is written to: got {writes}"
    )
    assert internals.functional(in_place) is plain, "torch has no add beside add_ under the same overload"


def test_what_writes_is_known_before_it_is_run_again():
    x, mean, var = torch.randn(8, 3) + 1, torch.zeros(3), torch.ones(3)
    aten.native_batch_norm.default(x, None, None, mean, var, True, 0.1, 1e-5)
    assert mean.any(), "native_batch_norm no longer updates its running mean: drop UNDECLARED_WRITE"
    declared = {op: op._schema.is_mutable for op in (aten.add_.Tensor, aten._native_batch_norm_legit.default)}
    assert all(declared.values()), f"torch's schemas no longer say that these write: {declared}"
    assert internals.mutates(aten.native_batch_norm.default) and not internals.mutates(aten.add.Tensor)


def test_elementwise_operations_are_tagged():
    tagged = {
        str(op): internals.is_pointwise(op)
        for op in (aten.add.Tensor, aten.relu.default, aten.exp.default, aten.mm.default, aten.sum.default)
    }
    assert list(tagged.values()) == [True, True, True, False, False], (
        f"torch tags other operations as pointwise than it did: {tagged}"
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_storage_has_a_number_of_its_own(device):
    a, b = torch.empty(4, device=device), torch.empty(4, device=device)
    assert internals.storage_id(a) == internals.storage_id(a.view(2, 2)[1]), (
        f"views of one tensor no longer share a storage number on {device}"
    )
    assert internals.storage_id(a) != internals.storage_id(b), (
        f"two tensors on {device} have one storage number: in-place writes cannot be followed"
    )


def test_the_fused_encoder_layer_can_be_switched_off():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    with internals.without_fast_attention(), torch.no_grad(), Names() as names:
        layer(torch.randn(2, 3, 8))
    fused = [name for name in names.seen if "encoder_layer" in name or "multi_head_attention" in name]
    assert not fused, f"torch fuses an encoder layer although its fast path is off: {fused}"
    assert torch.backends.mha.get_fastpath_enabled() is before


def test_compiled_models_hold_the_model_under_the_name_we_know():
    names = [name for name, _ in torch.compile(nn.Linear(2, 2)).named_children()]
    assert names == [internals.COMPILED], (
        f"torch.compile keeps the model as {names}, not {internals.COMPILED}"
    )


def test_wrappers_put_the_prefixes_we_know_before_names():
    checkpoint = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    fsdp = pytest.importorskip("torch.distributed.fsdp._common_utils")
    inside = [name for name, _ in checkpoint.checkpoint_wrapper(nn.Linear(2, 2)).named_children()]
    wrapped = {f"{name}." for name in (*inside, fsdp.FSDP_WRAPPED_MODULE)}
    unknown = wrapped - set(internals.WRAPPER_PREFIXES)
    assert not unknown, f"torch's wrappers put {sorted(unknown)} before names: add it to WRAPPER_PREFIXES"


def test_all_norms_with_running_statistics_are_of_one_class():
    running = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d)
    outside = [cls.__name__ for cls in running if not issubclass(cls, internals.RunningNorm)]
    assert not outside, f"torch no longer derives {outside} from the class of norms with running statistics"
    assert not issubclass(nn.LayerNorm, internals.RunningNorm)


def test_a_vmapped_function_is_recorded_as_operations_with_shapes():
    graph = internals.make_fx(torch.func.vmap(lambda w, x: (w @ x).sum()))(
        torch.ones(4, 2, 3), torch.ones(4, 3)
    )
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert calls, "make_fx no longer records a vmapped function as calls of operations"
    unknown = [
        str(n.target) for n in calls if n.meta.get("tensor_meta") is None and n.meta.get("val") is None
    ]
    assert not unknown, f"make_fx no longer says which shape these have: {unknown}"
    kept = internals.UNSAFE_VIEW(torch.ones(2, 3), [3, 2])
    assert kept.shape == (3, 2), "aten._unsafe_view is no longer a reshape: a fleet's graph may not drop it"


def test_the_operations_we_know_exist():
    lists = (operations.LINEAR, operations.POSITIVE, operations.JOINT, operations.NORMS, operations.MATMULS)
    lists += (operations.CONVOLUTIONS, operations.LOOKUPS, operations.ACTIVATIONS, operations.FACTORIES)
    elsewhere = {"grouped_mm_fallback"}  # of transformers
    gone = sorted({n for names in lists for n in names if not hasattr(aten, n)} - elsewhere)
    assert not gone, f"torch {torch.__version__} has no ATen operations {gone}: find what they are called now"


def private(path):
    """Uses of torch's private names in one file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        line = f"{path.relative_to(PACKAGE.parent)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", "") or ""
            names = [f"{module}.{a.name}" if module else a.name for a in node.names]
            hidden = [n for n in names if n.split(".")[0] == "torch" and ("._" in n or "experimental" in n)]
            yield from (f"{line} {n}" for n in hidden)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root = node.value
            while isinstance(root, ast.Attribute | ast.Call):
                root = root.value if isinstance(root, ast.Attribute) else root.func
            name = root.id if isinstance(root, ast.Name) else ""
            if name in ("torch", "nn", "aten", "F") or (
                node.attr in PRIVATE and name not in ("self", "other")
            ):
                yield f"{line} .{node.attr}"


def test_nothing_else_reaches_into_torch():
    files = [p for p in PACKAGE.rglob("*.py") if p.name != "torch_internals.py"]
    assert len(files) > 50
    found = [use for path in files for use in private(path)]
    assert not found, f"private parts of torch belong into trimtab/torch_internals.py, with a reason: {found}"
    assert len(list(private(PACKAGE / "torch_internals.py"))) >= 6  # the search itself finds what there is


def test_a_tensor_counts_its_changes():
    x = torch.zeros(2)
    before = internals.times_written(x)
    x.add_(1)
    assert internals.times_written(x) > before, "torch no longer counts changes in place: proof/starting.py"
    with torch.inference_mode():
        assert internals.times_written(torch.zeros(2)) == 0
