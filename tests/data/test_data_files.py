"""MNIST and CIFAR-10 from files: where they are found, and how bad files are refused."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import checked, refused
from helpers.imagefiles import (
    STEMS,
    four,
    idx_bytes,
    images,
    records,
    tar_up,
    write_cifar,
    write_mnist,
)

from nnmpi import data
from nnmpi.addons.images import cifar, mnist


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_every_set_of_images_is_valid(name: str, tmp_path: Path) -> None:
    write_cifar(tmp_path) if name == "cifar10" else write_mnist(tmp_path, four())
    dataset = checked(name, tmp_path)
    assert dataset.name.startswith(name)
    for x, y in (dataset.train, dataset.test):
        assert y.shape == (len(x),)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
def test_mnist_is_found(place: str, suffix: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / place, four(), suffix)
    dataset = data.load("mnist", data_dir=str(tmp_path))
    np.testing.assert_array_equal(dataset.train.x[:, 0], images(20))
    assert dataset.test.x.shape == (10, 1, 4, 5)
    assert dataset.note == ""
    np.testing.assert_array_equal(dataset.test.y, np.arange(10))


def test_the_t10k_pair_alone_is_divided(tmp_path: Path) -> None:
    write_mnist(tmp_path, dict.fromkeys(mnist.TEST, 10_000))
    dataset = data.load("mnist", data_dir=str(tmp_path))
    assert (len(dataset.train.y), len(dataset.test.y)) == (8000, 2000)
    assert "first 8,000 images for training, last 2,000 for testing" in dataset.note
    np.testing.assert_array_equal(dataset.test.x[:, 0], images(10_000)[8000:])
    write_mnist(tmp_path, dict.fromkeys(mnist.TEST, 1))
    with refused("1 image, too few"):
        data.load("mnist", data_dir=str(tmp_path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refused("mnist: ", *STEMS, str(tmp_path / "MNIST/raw"), "--data-dir", "--download"):
        data.load("mnist", data_dir=str(tmp_path))
    write_mnist(tmp_path, {stem: 10 for stem in STEMS if stem != mnist.TRAIN[1]})
    with refused(f"mnist: {mnist.TRAIN[1]} not found"):
        data.load("mnist", data_dir=str(tmp_path))


GOOD = idx_bytes(images(10))
LABELS = idx_bytes(np.arange(10))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD[:-1], ("takes 200", "it has 199")),
        (GOOD + b"ab", ("takes 200", "it has 202")),
        (GOOD[:10], ("10 bytes",)),
        (b"", ("0 bytes", "expected 2051")),
        (LABELS, ("2049 (labels)", "expected 2051 (images)")),
        (b"<html>no such page</html>", ("magic number", "neither")),
        (gzip.compress(GOOD)[:-20], ("end-of-stream",)),
        (gzip.compress(GOOD)[:40] + b"zz" + gzip.compress(GOOD)[42:], ("is damaged",)),
        (gzip.compress(GOOD) + b"more", ("is damaged",)),
        (b"\0\0\x08\x03" + b"\0" * 12, ("is empty", "(0, 0, 0)")),
        (b"\0\0\x08\x03" + b"\xff" * 12, ("takes", "it has 0")),
        (idx_bytes(images(9)), ("9 images", "10 labels")),
    ],
)
def test_a_bad_idx_file_is_refused(content: bytes, words: tuple[str, ...], tmp_path: Path) -> None:
    write_mnist(tmp_path, four())
    path = tmp_path / mnist.TEST[0]
    path.write_bytes(content)
    with refused(str(path), "--download", *words):
        data.load("mnist", data_dir=str(tmp_path))


def test_labels_out_of_range_and_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, four())
    (tmp_path / mnist.TEST[1]).write_bytes(idx_bytes(np.arange(10) + 3))
    with refused(mnist.TEST[1], "label 10 in row 7", "0 to 9"):
        data.load("mnist", data_dir=str(tmp_path))
    write_mnist(tmp_path, four())
    (tmp_path / mnist.TEST[0]).write_bytes(idx_bytes(np.zeros((10, 6, 6))))
    with refused("(4, 5) pixels", "(6, 6)"):
        data.load("mnist", data_dir=str(tmp_path))


def test_the_real_test_images() -> None:
    folder = os.environ.get("NNMPI_MNIST")
    if not folder:
        pytest.skip("NNMPI_MNIST names no directory with files of MNIST")
    dataset = data.load("mnist", data_dir=folder)
    assert dataset.train.x.shape[1:] == (1, 28, 28)
    assert dataset.classes == 10
    assert dataset.test.x.max() == 255


@pytest.mark.parametrize("place", ["", f"cifar10/{cifar.FOLDER}"])
def test_cifar_batches_are_found(place: str, tmp_path: Path) -> None:
    write_cifar(tmp_path / place)
    check_cifar(tmp_path)


def test_cifar_is_read_from_the_archive(tmp_path: Path) -> None:
    tar_up(write_cifar(tmp_path / "source"), tmp_path / cifar.ARCHIVE)
    check_cifar(tmp_path)


def check_cifar(folder: Path) -> None:
    dataset = data.load("cifar10", data_dir=str(folder))
    rows = np.frombuffer(b"".join(records(4, i) for i in range(6)), "uint8").reshape(24, -1)
    x = np.concatenate((dataset.train.x, dataset.test.x)).reshape(24, -1)
    np.testing.assert_array_equal(x, rows[:, 1:])
    np.testing.assert_array_equal(np.concatenate((dataset.train.y, dataset.test.y)), rows[:, 0])
    assert dataset.train.x.shape == (20, 3, 32, 32)
    assert dataset.note == ""


def test_bad_cifar_files_are_refused(tmp_path: Path) -> None:
    with refused("data_batch_1.bin", "test_batch.bin", "binary version", "--download"):
        data.load("cifar10", data_dir=str(tmp_path))
    write_cifar(tmp_path, skip="data_batch_3.bin")
    with refused("cifar10: found neither data_batch_3.bin nor the archive"):
        data.load("cifar10", data_dir=str(tmp_path))
    path = tmp_path / "data_batch_3.bin"
    for content in (b"", records(2)[:-5]):
        path.write_bytes(content)
        with refused(str(path), f"{len(content):,} bytes", "3,073"):
            data.load("cifar10", data_dir=str(tmp_path))
    path.write_bytes(b"\x0c" + records(1)[1:])
    with refused(str(path), "label 12 in row 0"):
        data.load("cifar10", data_dir=str(tmp_path))


def test_a_bad_cifar_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / cifar.ARCHIVE
    tar_up(write_cifar(tmp_path / "source", skip=cifar.TEST), archive)
    with refused(str(archive), "holds no test_batch.bin"):
        data.load("cifar10", data_dir=str(tmp_path))
    whole = tar_up(write_cifar(tmp_path / "source"), archive).read_bytes()
    for content in (b"", b"no archive", whole[:-40], whole[: len(whole) // 2]):
        archive.write_bytes(content)
        with refused(str(archive), "--download"):
            data.load("cifar10", data_dir=str(tmp_path))
