"""The sidebar: one module for each group of inputs. Widgets show fields of the settings and write them back."""
