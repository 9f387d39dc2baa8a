#!/usr/bin/env bash
# Gradescope runs this once, as root, when the autograder is uploaded. It installs what the grader
# needs.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}"

python=python3
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    apt-get update
    apt-get install -y python3.11 python3.11-venv
    python=python3.11
fi
$python -m venv venv
# PyTorch for CPUs is a tenth of the one for GPUs.
torch=$(grep ^torch source/lab/requirements.txt)
venv/bin/pip install "$torch" --index-url https://download.pytorch.org/whl/cpu
venv/bin/pip install numpy tiktoken tqdm
# What is handed in runs as another user, who must be able to read this, and not the checks.
chmod -R a+rX venv
chmod 700 source
