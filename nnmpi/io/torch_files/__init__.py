"""PyTorch's own files, .pt and .pth, read without PyTorch and without running code in them."""
