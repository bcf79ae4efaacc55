"""PyTorch's memory formats, accepted and ignored: images are channels-last anyway."""

channels_last = "channels_last"
contiguous_format = "contiguous_format"
preserve_format = "preserve_format"
