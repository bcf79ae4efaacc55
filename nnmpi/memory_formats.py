"""PyTorch's names of memory formats: values that `to` and `contiguous` take, and that change
nothing, since images are channels-last in memory anyway."""

channels_last = "channels_last"
contiguous_format = "contiguous_format"
preserve_format = "preserve_format"
