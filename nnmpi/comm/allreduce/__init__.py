"""All-reduces: which there are, which is the fastest, and how each is carried out."""
