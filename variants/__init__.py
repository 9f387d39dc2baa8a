"""
What a file of this folder must be: see README.md here.
"""
import model
from support.flags import InputError, plugin


def config_of(name: str):
    """The Config of variants/NAME.py. Raises InputError where something in that file is in vain."""
    file = plugin("variants", name)
    if getattr(getattr(file, "Config", None), "__module__", "") != file.__name__:
        raise InputError(
            f"variants/{name}.py needs a Config of its own: class Config(model.Config)")
    if any("val_nll" in row.reported for row in file.Config.modes.values()):
        raise InputError(f"variants/{name}.py reports another val_nll, which is the name of the "
                         "bound; give it a name of its own")
    used = [value for row in file.Config.modes.values() for value in row]
    for own, value in vars(file).items():
        anew = hasattr(model, own) and getattr(value, "__module__", None) == file.__name__
        if anew and own != "Config" and value not in used:
            raise InputError(f"variants/{name}.py defines {own} of model.py anew, but no row of "
                             "Config.modes has it; put it into one, or give it another name")
    return file.Config
