"""Operations under way."""
