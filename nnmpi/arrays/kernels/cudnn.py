"""Convolution by cuDNN on a GPU, all images at once: the interface is that of `Im2col`.

Bias and ReLU are a kernel behind it, and pooling another: engines of cuDNN that take them along
exist for some types only.
"""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.cuda import convolution as cudnn
from nnmpi.arrays.kernels import column_sum, epilogue, progress_hook
from nnmpi.arrays.kernels.epilogue import Gradients, RowConstants
from nnmpi.arrays.kernels.im2col import Im2col
from nnmpi.arrays.kernels.window import Windows


class Cudnn:
    """A convolution of x (N, H, W, C) by w (kh, kw, C / groups, O), pooled or not."""

    def __init__(
        self, x: Array, w: Array, windows: Windows, groups: int, pool: bool, spec: cudnn.Spec
    ) -> None:
        self.xp, self.spec, self.f = xp_of(x), spec, 2 if pool else 1
        self.w, self.windows, self.groups = w, windows, groups
        self.x = self.xp.ascontiguousarray(x)
        self.filter = self.xp.ascontiguousarray(w.transpose(3, 0, 1, 2))
        _, h, v, _ = spec.y
        self.covers = (h // self.f, v // self.f)
        self.kept = dict[int, Array]()

    @classmethod
    def of(
        cls, x: Array, w: Array, windows: Windows, groups: int, pool: bool, keep: bool
    ) -> "Cudnn | None":
        """The convolution, or None where cuDNN is not there or has no engine for it.

        Whether it has one for the gradient of x is asked when somebody wants that: nobody wants
        that of samples.
        """
        h, v = (f.outputs(size) for f, size in zip(windows, x.shape[1:3], strict=True))
        spec, ops = cudnn.spec_of(x, w, windows, (h, v), groups), (cudnn.FORWARD, cudnn.WEIGHTS)
        if spec is None or not all(cudnn.can(op, spec, xp_of(x)) for op in ops[: 1 + keep]):
            return None
        return cls(x, w, windows, groups, pool, spec)

    def _windows(self, z: Array) -> Array:
        """Raw outputs z (N, h, v, O) as pooling windows (2, 2, N, h / 2, v / 2, O), a view."""
        (h, v), f = self.covers, self.f
        whole = z[:, : f * h, : f * v]
        return whole.reshape(len(z), h, f, v, f, z.shape[3]).transpose(2, 4, 0, 1, 3, 5)

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        """The outputs y (N, h, v, O) of all images."""
        z = y if self.f == 1 else self.xp.empty(self.spec.y, y.dtype)
        cudnn.run(cudnn.FORWARD, self.spec, (self.x, self.filter), z)
        if self.f == 1:
            epilogue.bias_relu(y, rows)
        else:
            epilogue.outputs(self._windows(z), y, largest, rows, self.covers)

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """From the gradient g of y: write dx, dw and db, those that are not None."""
        dz = epilogue.masked(g, y, None)
        if shared.db is not None:
            column_sum(dz.reshape(-1, dz.shape[3]), shared.db)
        if self.f > 1:
            is_covered = tuple(self.f * size for size in self.covers) == self.spec.y[1:3]
            make = self.xp.empty if is_covered else self.xp.zeros
            whole = make(self.spec.y, g.dtype)
            epilogue.spread(dz, largest, self._windows(whole), self.covers)
            dz = whole
        progress_hook.get()()
        if shared.dx is not None:
            self._data_gradient(dz, shared.dx)
        if shared.dw is not None:
            cudnn.run(cudnn.WEIGHTS, self.spec, (self.x, dz), shared.dw)

    def _data_gradient(self, dz: Array, dx: Array) -> None:
        if cudnn.can(cudnn.DATA, self.spec, self.xp):
            cudnn.run(cudnn.DATA, self.spec, (dz, self.filter), dx)
        else:
            method = Im2col(self.x, self.w, self.windows, self.groups, False, len(dx))
            method.backward(slice(0, len(dx)), dz.reshape(-1, dz.shape[3]), dx, None)

    def new_dw(self) -> Array:
        """Room for the gradient of w, in the order of cuDNN's filters."""
        return self.xp.empty_like(self.filter)

    def finish_dw(self, dw: Array) -> Array:
        """The gradient of w (kh, kw, C / groups, O), a view."""
        return dw.transpose(1, 2, 3, 0)

    def begin_backward(self, needs_dx: bool) -> None:
        """Before the first `gradients`."""

    def release(self) -> None:
        """After a pass."""
