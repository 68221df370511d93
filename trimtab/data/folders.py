"""Image folders in ImageNet's layout, streamed: `root/train/<class>/*.jpg` and `root/val/<class>/*.jpg`.

Threads decode the batches of the next steps while this one trains (Pillow lets go of the interpreter while it
decodes). Decoded images are kept, as bytes of the target size, until `cache_gb` is full; the rest is decoded
anew each time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab.data.batches import CHANGE, Batch, augment, indices, stream
from trimtab.data.catalogue import Shape
from trimtab.data.places import find
from trimtab.errors import InputError

WHERE = (
    "`trimtab data get tiny-imagenet` gets Tiny-ImageNet; ImageNet is at https://image-net.org. A folder has "
    "train/<class>/ and val/<class>/ folders of images."
)
ENDINGS = {".jpeg", ".jpg", ".png", ".webp", ".bmp"}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]) * 255, torch.tensor([0.229, 0.224, 0.225]) * 255  # ImageNet's


class Folder:
    """A streamed data set.

    Args:
        px: side of the images given. flip: mirror half of them. crop: in training a random part of 35 to 100
            % of the image, resized, else the central square.
        workers: decoding threads; 0 decodes in the caller.
        cache_gb: memory for decoded images, in GB.
    """

    def __init__(self, root: Path, px: int, flip: bool, crop: bool, workers: int, cache_gb: float):
        self.classes = (
            sorted(p.name for p in (root / "train").iterdir() if p.is_dir())
            if (root / "train").is_dir()
            else []
        )
        if not self.classes:
            raise InputError(
                f"an image folder has train/<class>/ folders of images: {root / 'train'} has none. {WHERE}"
            )
        self.train = _list_images(root / "train", self.classes)
        held_out = next((root / name for name in ("val", "test") if (root / name).is_dir()), None)
        self.held_out = _list_images(held_out, self.classes) if held_out else []
        if not self.train:
            raise InputError(
                f"{root / 'train'} holds no image with one of the endings {', '.join(sorted(ENDINGS))}."
            )
        self.px, self.flip, self.crop, self.workers = px, flip, crop, workers
        self.shape = Shape((3, px, px), len(self.classes), "image", len(self.train))
        self._cache: dict[Path, np.ndarray] = {}
        self._room = int(cache_gb * 1e9)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: dict[tuple[int, int, int], Future[Batch]] = {}

    def _decode(self, path: Path) -> np.ndarray:
        """(px', px', 3) bytes: the central square resized to px, or for random crops the short side resized
        to 8/7 px."""
        from PIL import Image, UnidentifiedImageError

        found = self._cache.get(path)
        if found is not None:
            return found
        side = self.px if not self.crop else round(self.px * 8 / 7)
        try:
            with Image.open(path) as image:
                image.draft(
                    "RGB", (2 * side, 2 * side)
                )  # JPEG: decode at a lower resolution where that is enough
                image = image.convert("RGB")  # grey, palette and CMYK too
                scale = side / min(image.size)
                size = (max(side, round(image.width * scale)), max(side, round(image.height * scale)))
                image = image.resize(size, Image.Resampling.BILINEAR) if size != image.size else image
                left, top = (size[0] - side) // 2, (size[1] - side) // 2
                array = np.asarray(image.crop((left, top, left + side, top + side)))
        except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
            raise InputError(f"{path} cannot be read as an image: {error}. Replace or remove it.") from error
        with self._lock:
            if self._room >= array.nbytes:
                self._room -= array.nbytes
                self._cache[path] = array
        return array

    def _batch(self, seed: int, step: int, size: int) -> Batch:
        rows = indices(seed, step, size, len(self.train))
        arrays = [self._decode(self.train[i][0]) for i in rows]
        if self.crop:
            arrays = _crops(arrays, self.px, stream(seed, CHANGE, 2**39 + step))
        x = _tensor(arrays)
        return augment(x, seed, step, self.flip, 0), torch.tensor([self.train[i][1] for i in rows])

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        if self.workers == 0:
            return self._batch(seed, step, size)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "trimtab-decode")
        asked = [(seed, s, size) for s in range(step, step + self.workers + 1)]
        for key in [k for k in self._ahead if k not in asked]:
            self._ahead.pop(key).cancel()
        for key in asked:
            if key not in self._ahead:
                self._ahead[key] = self._pool.submit(self._batch, *key)
        return self._ahead.pop(asked[0]).result()

    def test(self, size: int, limit: int | None) -> Iterator[Batch]:
        files = self.held_out
        if limit is not None and limit < len(
            files
        ):  # listed class by class: a fixed shuffle shows all of them
            files = [
                files[i] for i in np.random.Generator(np.random.Philox(key=1)).permutation(len(files))[:limit]
            ]
        for i in range(0, len(files), size):
            part = files[i : i + size]
            arrays = [self._decode(path) for path, _ in part]
            margin = (arrays[0].shape[0] - self.px) // 2
            yield (
                _tensor([a[margin : margin + self.px, margin : margin + self.px] for a in arrays]),
                torch.tensor([label for _, label in part]),
            )


def _crops(arrays: list[np.ndarray], px: int, random: np.random.Generator) -> list[np.ndarray]:
    """A random square part of each image, resized to px by nearest neighbours."""
    out = []
    for array in arrays:
        side = array.shape[0]
        part = max(1, min(side, round(side * float(np.sqrt(random.uniform(0.35, 1.0))))))
        top, left = random.integers(0, side - part + 1, 2)
        picks = (np.arange(px) * part) // px
        out.append(array[top + picks][:, left + picks])
    return out


def _tensor(arrays: list[np.ndarray]) -> Tensor:
    x = torch.from_numpy(np.stack(arrays)).movedim(-1, 1).float()
    return (x - MEAN.view(-1, 1, 1)) / STD.view(-1, 1, 1)


def _list_images(root: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """Every image of the known classes, one folder deep or under an `images` folder (Tiny-ImageNet's own
    layout)."""
    found = []
    for label, name in enumerate(classes):
        for path in sorted((root / name).rglob("*")) if (root / name).is_dir() else []:
            if path.suffix.lower() in ENDINGS:
                found.append((path, label))
    return found


def read(
    folder: str | None = None,
    px: int = 64,
    flip: bool = False,
    crop: bool = False,
    workers: int = 2,
    cache_gb: float = 1.0,
) -> Folder:
    """An image folder by its root, absolute or inside $TRIMTAB_DATA."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise InputError("image folders need Pillow: pip install 'trimtab[images]'.") from error
    return Folder(
        find(folder, "tiny-imagenet-200", f"the image folder {folder or ''}".strip(), WHERE),
        px,
        flip,
        crop,
        workers,
        cache_gb,
    )
