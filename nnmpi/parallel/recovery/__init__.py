"""Copies by which ranks go on if one is lost: backups, and what undoes a step; the layouts that fit
the ranks that are left."""
