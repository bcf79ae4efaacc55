"""Convolution by cuDNN, of all images at once: a `ConvMethod`."""

from nnmpi.addons.cuda import cudnn
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import column_sum, epilogue, progress_hook
from nnmpi.arrays.kernels.conv import ConvShape
from nnmpi.arrays.kernels.epilogue import Gradients, RowConstants
from nnmpi.arrays.kernels.im2col import Im2col
from nnmpi.arrays.kernels.window import Windows


class Cudnn:
    """A convolution of x (N, H, W, C) by w (kh, kw, C / groups, O) that cuDNN computes; bias,
    ReLU and optional 2x2 max-pooling follow in kernels of nnmpi. Its methods are those of
    `ConvMethod`."""

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
        """Makes the convolution of x by w with the options f; None if cuDNN is not installed or has
        no engine for it.

        It does not check for an engine for the gradient of x, which is not needed if x is the
        model's input; `gradients` does.
        """
        h, v = (window.outputs(size) for window, size in zip(f.windows, x.shape[1:3], strict=True))
        spec = cudnn.convolution(x, w, f.windows, (h, v), f.groups)
        ops = (cudnn.FORWARD, cudnn.WEIGHTS)[: 1 + f.keep]
        if spec is None or not all(cudnn.can(spec.doing(op), xp_of(x)) for op in ops):
            return None
        return cls(x, w, f.windows, f.groups, f.pool, spec)

    def _run(self, op: cudnn.CudnnOp, *arrays: Array) -> None:
        """Runs one cuDNN operation of this convolution on contiguous arrays.

        `arrays` are the operation's two inputs and then its output, which is written.
        """
        *inputs, output = arrays
        aligned = [a if a.data.ptr % cudnn.ALIGNED == 0 else a.copy() for a in inputs]
        cudnn.run(self.spec.doing(op), [*aligned, output])

    def _windows(self, z: Array) -> Array:
        """Returns a view (2, 2, N, h / 2, v / 2, O) of the convolution's outputs z (N, h, v, O):
        the first two axes are the position of an element in its 2x2 pooling window.

        Without pooling the first two axes have length 1.
        """
        (h, v), f = self.covers, self.f
        covered = z[:, : f * h, : f * v]
        return covered.reshape(len(z), h, f, v, f, z.shape[3]).transpose(2, 4, 0, 1, 3, 5)

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        """Writes the outputs y (N, h, v, O) of all images: convolution, then pooling, bias and
        ReLU.

        `largest` receives the position of the maximum in each pooling window, for the backward
        pass; `rows` has the bias. `s`, a slice of images in other methods of convolution, is not
        used.
        """
        z = y if self.f == 1 else self.xp.empty(self.spec.y, y.dtype)
        self._run(cudnn.FORWARD, self.x, self.filter, z)
        if self.f == 1:
            epilogue.bias_relu(y, rows)
        else:
            epilogue.outputs(self._windows(z), y, largest, rows, self.covers)

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """Computes the gradients of a convolution, with its pooling and ReLU, from the gradient g
        of y.

        Writes those arrays of `shared` (dx, dw, db) that are not None. y is the output, or None
        without ReLU; `largest` has the position of the maximum in each pooling window (None without
        pooling); `s`, a slice of images in other methods, is not used.
        """
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
        """Allocates w's gradient in cuDNN's order, (O, kh, kw, C / groups)."""
        return self.xp.empty_like(self.filter)

    def finish_dw(self, dw: Array) -> Array:
        """Returns w's gradient as a view (kh, kw, C / groups, O)."""
        return dw.transpose(1, 2, 3, 0)

    def begin_backward(self, needs_dx: bool) -> None:
        """Does nothing; other convolution methods prepare their weights here."""

    def release(self) -> None:
        """Does nothing; other convolution methods free memory here."""
