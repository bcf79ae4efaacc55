"""All-reduces: their names, the choice of the fastest, and how each is carried out."""
