"""PyTorch's own files, .pt and .pth, read and written without PyTorch, and without running code."""
