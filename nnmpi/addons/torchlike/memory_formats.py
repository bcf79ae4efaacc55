"""PyTorch's names of memory formats. `to` and `contiguous` accept and ignore them: nnmpi stores
images channels-last in memory anyway."""

channels_last = "channels_last"
contiguous_format = "contiguous_format"
preserve_format = "preserve_format"
