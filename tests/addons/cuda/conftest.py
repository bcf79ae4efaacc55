"""cuDNN, or what stands for it."""

from collections.abc import Iterator

import pytest
from helpers.device import IS_EMULATED
from helpers.kernels import fakecudnn

from nnmpi.addons.cuda import cudnn


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[fakecudnn.Fake | None]:
    """The fake, or None on a GPU that has cuDNN."""
    if not IS_EMULATED:
        if cudnn.library() is None:
            pytest.skip("cuDNN or its front end is not installed on this machine with a GPU")
        yield None
        return
    with fakecudnn.install(monkeypatch) as found:
        yield found
