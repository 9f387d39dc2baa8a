"""
What each difference does to mdlm, to ar, and to the gap between them.

    python -m experiments.confounds --mdlm=results/confounds-mdlm.json --ar=results/confounds-ar.json \\
        --json=F --plot=G

reads what held_out has found of the runs of `experiments.results confounds`: how far each variant of a mode
is above the mode "as it is". Here the same is asked of mdlm's bound above ar's loss, on the same windows.
Where a variant is mdlm's alone, ar is as it is, or for the paper's weights with its own. A variant that was
trained on the paper's windows has a second row, on windows as the paper cuts them.
"""
from dataclasses import dataclass

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from experiments.held_out import compare, draw_forest, runs_of
from experiments.report import mean_of
from experiments.trials import stored
from show import figure

@dataclass
class ConfoundsOptions:
    """what to read and what to write"""
    mdlm: str = ""          # results of held_out for the variants of mdlm
    ar: str = ""            # for those of ar
    json: str = ""          # file for the gaps
    plot: str = ""          # file for a figure (.png): a panel for each mode, and one for the gap

ON_CUT = ", on the paper's windows"
PARTNERS = {"its init, untied head": "its init", "its init, head, time": "its init"}

def read(path: str) -> dict:
    """Results of held_out. Raises InputError where they are something else."""
    if not stored(path, "compared", "names", "runs"):
        raise InputError("give --mdlm=F and --ar=F, results of experiments.held_out")
    return stored(path)

def gap(mdlm: dict, ar: dict, row: str) -> dict:
    """How far mdlm's bound is above ar's loss, as compare says it."""
    name, key = row.removesuffix(ON_CUT), "nats_cut" if row.endswith(ON_CUT) else "nats"
    partner = PARTNERS.get(name, name)
    of_ar = runs_of(ar, partner if partner in ar["names"] else "as it is")
    return compare(runs_of(mdlm, name), of_ar, key, key)

def cells(of: dict | None, beside_itself=False) -> list:
    """The seeds' mean ± their standard deviation, and what is above "as it is" ± its standard error."""
    if of is None:
        return ["", ""]
    above = "" if beside_itself else f"{of['above']:+.3f} ± {of['error']:.3f}"
    return [mean_of(of["seeds"], 3), above]

def table_of(mdlm: dict, ar: dict, gaps: dict) -> list:
    """A row for each variant, of nats per token."""
    rows = [["", "mdlm, ± s.d.", "change, ± s.e.", "ar, ± s.d.", "change, ± s.e.",
             "mdlm above ar, ± s.e."]]
    names = [*gaps, *(name for name in ar["compared"] if name not in gaps)]
    for name in names:
        first, of_gap = name.startswith("as it is"), gaps.get(name)
        rows.append([name, *cells(mdlm["compared"].get(name), first), *cells(ar["compared"].get(name), first),
                     f"{of_gap['above']:.3f} ± {of_gap['error']:.3f}" if of_gap else ""])
    return rows

def draw(panels: dict, names: list, path: str):
    """A panel for each {label: {name: what compare says}}, with a row for each of the names."""
    with figure(path, (13, 0.3 * len(names) + 1.2), columns=len(panels), grid="x") as all_axes:
        for axes, (label, found) in zip(all_axes, panels.items()):
            draw_forest(axes, found, names)
            as_it_is = next(iter(found.values()))["above"]
            axes.axvline(as_it_is, color="k", ls="--", lw=1, label="as it is")
            axes.set(xlabel=label)

def main():
    o = build(ConfoundsOptions, parse_flags(__doc__, ConfoundsOptions))
    mdlm, ar = read(o.mdlm), read(o.ar)
    gaps = {name: gap(mdlm, ar, name) for name in mdlm["compared"]}
    rows = table_of(mdlm, ar, gaps)
    print_table(rows)
    if o.json:
        write_json(o.json, provenance(None) | {"gaps": gaps})
    if o.plot:
        names = [name for name, *_ in rows[2:]]     # all but what they are compared with
        draw({"mdlm's bound, change in nats per token": mdlm["compared"],
              "ar's loss, change in nats per token": ar["compared"],
              "mdlm's bound above ar's loss, nats per token": gaps}, names, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
