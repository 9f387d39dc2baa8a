"""
What a file of this folder must be: see README.md here.
"""
import re

import model
from support.flags import InputError, did_you_mean, plugin


def config_of(name: str):
    """The Config of variants/NAME.py. Raises InputError where something in that file is in vain."""
    try:
        file = plugin("variants", name)
    except ValueError as e:
        unknown = re.findall(r"unexpected field names: \['(\w+)'", str(e))
        if not unknown:
            raise
        raise InputError(f"variants/{name}.py: a Mode has no {unknown[0]}"
                         f"{did_you_mean(unknown[0], model.Mode._fields)}") from e
    used = [value for row in file.Config.modes.values() for value in row]
    for own, value in vars(file).items():
        anew = hasattr(model, own) and getattr(value, "__module__", None) == file.__name__
        if anew and own not in ("Config", "main") and value not in used:
            raise InputError(f"variants/{name}.py defines {own} of model.py anew, but no row of "
                             "Config.modes has it; put it into one, or give it another name")
    return file.Config
