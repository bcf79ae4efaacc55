"""Convolution by cuDNN: a ConvMethod (`kernels/conv.py`) that computes all images at once."""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.cuda import cudnn
from nnmpi.arrays.kernels import column_sum, epilogue, progress_hook
from nnmpi.arrays.kernels.conv import ConvShape
from nnmpi.arrays.kernels.epilogue import Gradients, RowConstants
from nnmpi.arrays.kernels.im2col import Im2col
from nnmpi.arrays.kernels.window import Windows


class Cudnn:
    """A convolution of x (N, H, W, C) by w (kh, kw, C / groups, O) by cuDNN, with or without
    pooling."""

    adds_db = False

    def __init__(
        self, x: Array, w: Array, windows: Windows, groups: int, pool: bool, spec: cudnn.Convolution
    ) -> None:
        self.xp, self.spec, self.f = xp_of(x), spec, 2 if pool else 1
        self.w, self.windows, self.groups = w, windows, groups
        self.x = self.xp.ascontiguousarray(x)
        self.filter = self.xp.ascontiguousarray(w.transpose(3, 0, 1, 2))
        _, h, v, _ = spec.y
        self.covers = (h // self.f, v // self.f)
        self.kept = dict[int, Array]()

    @classmethod
    def of(cls, x: Array, w: Array, f: ConvShape) -> "Cudnn | None":
        """Makes the convolution; None if cuDNN is not installed or has no engine for it.

        It does not check for an engine for the gradient of x, which a first layer does not need;
        `gradients` does.
        """
        h, v = (window.outputs(size) for window, size in zip(f.windows, x.shape[1:3], strict=True))
        spec = cudnn.convolution(x, w, f.windows, (h, v), f.groups)
        ops = (cudnn.FORWARD, cudnn.WEIGHTS)[: 1 + f.keep]
        if spec is None or not all(cudnn.can(spec.doing(op), xp_of(x)) for op in ops):
            return None
        return cls(x, w, f.windows, f.groups, f.pool, spec)

    def _run(self, op: cudnn.CudnnOp, *arrays: Array) -> None:
        """Runs a cuDNN operation on contiguous arrays in its order; it writes the last one."""
        *inputs, output = arrays
        aligned = [a if a.data.ptr % cudnn.ALIGNED == 0 else a.copy() for a in inputs]
        cudnn.run(self.spec.doing(op), [*aligned, output])

    def _windows(self, z: Array) -> Array:
        """Returns raw outputs z (N, h, v, O) by pooling windows, (2, 2, N, h / 2, v / 2, O): a
        view."""
        (h, v), f = self.covers, self.f
        covered = z[:, : f * h, : f * v]
        return covered.reshape(len(z), h, f, v, f, z.shape[3]).transpose(2, 4, 0, 1, 3, 5)

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        """Writes the outputs y (N, h, v, O) of all images, after bias, ReLU and pooling."""
        z = y if self.f == 1 else self.xp.empty(self.spec.y, y.dtype)
        self._run(cudnn.FORWARD, self.x, self.filter, z)
        if self.f == 1:
            epilogue.bias_relu(y, rows)
        else:
            epilogue.outputs(self._windows(z), y, largest, rows, self.covers)

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """Writes dx, dw and db, from the gradient g of y; each may be None in `shared`."""
        dz = epilogue.masked(g, y, None)
        if shared.db is not None:
            column_sum(dz.reshape(-1, dz.shape[3]), shared.db)
        if self.f > 1:
            is_covered = tuple(self.f * size for size in self.covers) == self.spec.y[1:3]
            make = self.xp.empty if is_covered else self.xp.zeros
            dy = make(self.spec.y, g.dtype)
            epilogue.spread(dz, largest, self._windows(dy), self.covers)
            dz = dy
        progress_hook.get()()
        if shared.dx is not None:
            self._data_gradient(dz, shared.dx)
        if shared.dw is not None:
            self._run(cudnn.WEIGHTS, self.x, dz, shared.dw)

    def _data_gradient(self, dz: Array, dx: Array) -> None:
        if cudnn.can(self.spec.doing(cudnn.DATA), self.xp):
            self._run(cudnn.DATA, dz, self.filter, dx)
        else:
            method = Im2col(self.x, self.w, self.windows, self.groups, False, len(dx))
            method.backward(slice(0, len(dx)), dz.reshape(-1, dz.shape[3]), dx, None)

    def new_dw(self) -> Array:
        """Allocates the gradient of w, in the order of cuDNN's filters."""
        return self.xp.empty_like(self.filter)

    def finish_dw(self, dw: Array) -> Array:
        """Returns the gradient of w as (kh, kw, C / groups, O): a view."""
        return dw.transpose(1, 2, 3, 0)

    def begin_backward(self, needs_dx: bool) -> None:
        """Does nothing; other convolution methods prepare their weights here."""

    def release(self) -> None:
        """Does nothing; other convolution methods free memory here."""
