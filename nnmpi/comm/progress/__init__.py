"""Operations that are not complete, and what moves them forward."""
