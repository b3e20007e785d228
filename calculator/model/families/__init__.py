"""The families: each reads one model_type's dialect of config.json."""
