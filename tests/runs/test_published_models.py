"""Published models follow their data: vocabulary, classes, channels, image size; what is given explicitly
wins."""

import os

import pytest

from trimtab.errors import InputError
from trimtab.runs.config import RunConfig
from trimtab.runs.tasks import prepare

pytest.importorskip("transformers", reason="the [hf] extra is not installed")
from trimtab.data.catalogue import Shape
from trimtab.runs.published_models import fit_fields, load_published

DATA = os.environ.get("TRIMTAB_DATA") or ""
TEXT, CIFAR = Shape((64,), 65, "text"), Shape((3, 32, 32), 10, "image", 50_000)


def real(name):
    there = bool(DATA) and os.path.exists(os.path.join(DATA, name))
    return pytest.mark.skipif(not there, reason=f"TRIMTAB_DATA does not name a folder with {name}")


def config_of(model, data, options=None, width=64, **more):
    run = RunConfig(
        model=f"hf:{model}", width=width, depth=2, data=data, model_options=options or {}, lr=0.1, **more
    )
    made = prepare(run)
    loss, output = made.evaluate(made.start(0), made.batch(0, 0))
    assert loss.isfinite()
    return made.start(0).config, output.logits


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    return {"file": str(path), "context": 16}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bert"])
def test_a_language_model_has_the_characters_of_its_text(name, letters):
    heads = dict(num_attention_heads=4) | (
        dict(num_key_value_heads=2, head_dim=16) if name in ("llama", "gemma2") else {}
    )
    config, logits = config_of(name, "text", heads, data_options=letters)
    assert config.vocab_size == 28 and logits.shape == (64, 16, 28)  # 26 letters, a space, a newline
    if name == "bert":
        assert config.is_decoder  # else it would see the character it is asked for
    else:
        assert config.pad_token_id is None  # a padding row would be a character that never learns


def test_an_image_model_has_the_classes_and_channels_of_its_images():
    config, logits = config_of("vit", "digits", dict(patch_size=4))
    assert (config.num_labels, config.image_size, config.num_channels) == (10, 8, 1) and logits.shape == (
        64,
        10,
    )


@real("tinyshakespeare.txt")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_shakespeare(name):
    config, logits = config_of(name, "text", dict(num_attention_heads=4))
    assert config.vocab_size == 65 and logits.shape == (64, 64, 65)


@real("cifar-10-batches-py")
def test_cifar10():
    config, logits = config_of("vit", "cifar10")
    assert (config.num_labels, config.image_size, config.num_channels) == (10, 32, 3) and logits.shape == (
        64,
        10,
    )


def test_what_is_given_wins():
    fields, problems = fit_fields("gpt2", TEXT, {"vocab_size": 128, "n_positions": 64, "n_head": 2})
    assert not problems
    assert (fields["vocab_size"], fields["max_position_embeddings"], fields["num_attention_heads"]) == (
        128,
        64,
        2,
    )
    assert fit_fields("vit", CIFAR, {"num_labels": 100})[0]["num_labels"] == 100
    short = fit_fields("gpt2", Shape((2048,), 65, "text"), {})[0]
    assert short["max_position_embeddings"] == 2048  # gpt2 itself has 1,024


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("llama", TEXT, {"vocab_size": 64}, "model_options.vocab_size: the data has 65: got 64"),
        ("vit", CIFAR, {"image_size": 224}, "model_options.image_size: the data has 32: got 224"),
        ("vit", CIFAR, {"num_labels": 2}, "model_options.num_labels: the data has 10: got 2"),
        (
            "vit",
            Shape((3, 8, 8), 10, "image"),
            {},
            "model_options.patch_size: the image side must be a multiple",
        ),
        ("llama", CIFAR, {}, "hf:llama takes text data: got image data"),
        ("vit", TEXT, {}, "hf:vit takes image data: got text data"),
        ("t5", TEXT, {}, "no causal language model"),
    ],
)
def test_what_cannot_work_is_refused(name, shape, options, words):
    assert words in " ".join(map(str, fit_fields(name, shape, options)[1]))


def test_faults_come_before_any_work():
    with pytest.raises(InputError, match="takes text data"):
        prepare(RunConfig(model="hf:llama", width=64, depth=2, data="digits", lr=0.1))


def test_names_that_its_configuration_does_not_have_are_refused():
    """transformers takes any keyword: a model with the default number of heads was trained without a word."""
    wrong = {"num_atention_heads": 2, "hidden_act": "relu", "layers": 2}
    said = [str(problem) for problem in fit_fields("llama", TEXT, wrong)[1]]
    assert len(said) == 2 and "num_atention_heads" in said[0] and "nearest 'num_attention_heads'" in said[0]
    assert (
        fit_fields("gpt2", TEXT, {"n_head": 2, "attn_implementation": "eager", "use_cache": False})[1] == []
    )
    build, _ = load_published("llama")
    with pytest.raises(InputError, match="num_atention_heads"):
        build(64, 2, num_atention_heads=2)
