"""The small model that ships with Quire, its draft model, and in `training/` what they were made with."""
