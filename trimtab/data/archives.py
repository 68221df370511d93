"""Unpack an archive that came from elsewhere: every member stays inside, or nothing is unpacked.

Tar members go through Python's own "data" filter (PEP 706): no absolute path, no "..", no link that leads
out, no device. Zip members are held to the same law here, because `zipfile` quietly renames what breaks it.
"""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath

from trimtab.errors import InputError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz or .zip into `folder`, which must be empty.

    Raises:
        InputError: a member would leave the folder, is no plain file, or there is no room; the archive is
            broken.
    """
    try:
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(
            f"{archive} cannot be unpacked safely: {error}. Nothing of it was kept; if it is not from its "
            "official address, remove it."
        ) from error


def _unpack_tar(archive: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise InputError(
            "archives are unpacked with tarfile's data filter: update Python to 3.11.4 or newer."
        )
    with tarfile.open(archive) as held:
        members = held.getmembers()
        _check_room(archive, folder, sum(member.size for member in members))
        for member in members:  # all are judged before the first is written
            tarfile.data_filter(member, str(folder))
        held.extractall(folder, members, filter="data")


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as held:
        members = held.infolist()
        _check_room(archive, folder, sum(member.file_size for member in members))
        for member in members:
            fault = member_fault(member)
            if fault:
                what = f"{member.filename!r} {fault}"
                raise InputError(f"{archive} cannot be unpacked safely: {what}. Nothing of it was kept.")
        held.extractall(folder, members)


def member_fault(member: zipfile.ZipInfo) -> str:
    """Why a zip member is refused; empty where it may be unpacked.

    >>> member_fault(zipfile.ZipInfo("a/b.txt")), member_fault(zipfile.ZipInfo("a/../../b.txt"))
    ('', 'leads out of the folder')
    """
    name = member.filename
    if (
        PurePosixPath(name).is_absolute()
        or PureWindowsPath(name).is_absolute()
        or PureWindowsPath(name).drive
    ):
        return "is an absolute path"
    if ".." in PurePosixPath(name).parts or ".." in PureWindowsPath(name).parts:
        return "leads out of the folder"
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    return ""


def _check_room(archive: Path, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{archive.name} unpacks to {needed / 1e6:,.0f} MB and {folder} has {free / 1e6:,.0f} MB free. "
            "Make room, or set TRIMTAB_DATA to a folder on another disk."
        )
