"""From a config to a run on disk: its rules, data, plans, model, recipe, folder, record."""
