"""What a rank keeps so that others can go on if one is lost: backups, and copies that undo a step;
the layouts that fit the ranks that are left."""
