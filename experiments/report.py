"""Tables as a results/*.md shows them."""
import numpy as np

def mean_of(values, digits: int = 4) -> str:
    """Of several seeds the mean ± their standard deviation."""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"

def write_markdown(path: str, title: str, made: dict, text: str, tables: dict):
    """A page: what it is, where it is from (made: provenance), and {heading: rows of text, the first the
    head}; a heading may be empty."""
    with open(path, "w", encoding="utf-8") as f:
        print(f"# {title}\n\n{text.strip()}\n\nMade by `{made['command']}`: {made['machine']}, "
              f"{made['date']}, commit {made['commit']}.", file=f)
        for heading, rows in tables.items():
            print(f"\n## {heading}\n" if heading else "", file=f)
            for i, row in enumerate(rows):
                print("|", " | ".join(row), "|", file=f)
                if i == 0:
                    print("|---" * len(row) + "|", file=f)
