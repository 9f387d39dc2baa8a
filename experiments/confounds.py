"""
What does each difference between the paper's setup and ours do to the gap between mdlm and ar?

    python -m experiments.confounds

This trains and scores nothing, and takes a second. It reads two files of experiments.held_out, in
which the names are variants of a mode, for example "as it is" or "untied head". The gap is mdlm's
bound above ar's loss on the same windows, in nats per token. A variant that only mdlm has stands
beside ar as it is.
"""
from dataclasses import dataclass

from cli import build, check_flags, command, flag, parse_flags, print_table, provenance, write_json
from experiments.held_out import compare, mean_of, read_results, runs_of


@dataclass
class ConfoundsOptions:
    """what to read and what to write"""
    mdlm: str = flag("results/confounds-mdlm.json", "results of held_out for the variants of mdlm")
    ar: str = flag("results/confounds-ar.json", "the same for those of ar")
    json: str = flag("", "file for the gaps", file=(".json",))

    def __post_init__(self):
        check_flags(self)


# With the paper's weights ar is as it is in the paper: its head is tied, and it knows no timestep.
PARTNERS = {"its init, untied head": "its init", "its init, head, time": "its init"}


def partner_of(name: str, ar: dict) -> str:
    """The variant of ar that stands beside this one of mdlm."""
    partner = PARTNERS.get(name, name)
    return partner if partner in ar["names"] else "as it is"


def main():
    o = build(ConfoundsOptions, parse_flags(__doc__, ConfoundsOptions))
    mdlm = read_results(o.mdlm)
    ar = read_results(o.ar)
    gaps = {}
    rows = [["", "mdlm, ± s.d.", "ar, ± s.d.", "mdlm above ar, ± s.e."]]
    for name in mdlm["names"]:
        beside = runs_of(ar, partner_of(name, ar))
        gap = compare(runs_of(mdlm, name), beside)
        gaps[name] = gap
        seeds_of_ar = compare(beside, beside)["seeds"]
        rows.append([
            name,
            mean_of(gap["seeds"], 3),
            mean_of(seeds_of_ar, 3),
            f"{gap['above']:.3f} ± {gap['error']:.3f}"])
    print_table(rows)
    if o.json:
        write_json(o.json, provenance(None) | {"gaps": gaps})


if __name__ == "__main__":
    command(main, "nothing was written")
