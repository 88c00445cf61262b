#!/bin/sh
# Set RELIEF-Ray up in ./.venv, then run its demo or its tests.
#   sh bootstrap.sh demo      install what a server needs, run `relief-ray run demo`
#   sh bootstrap.sh test      install the development tools too, run the tests
#   sh bootstrap.sh slow      the same, then the tests that take long: about an hour on 2 cores; goes on where it was stopped
#   sh bootstrap.sh setup     install what `test` needs, run nothing
#   sh bootstrap.sh edge      install what a device of a cluster needs, keep the torch of its vendor, run nothing
# Further words go to the command that is run. PYTHON names the interpreter (default python3), RELIEF_VENV the
# environment (default .venv). Your pip settings (index, wheel folders, proxies) are used as they are.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")"
export RAY_USAGE_STATS_ENABLED=0

say() { printf '%-9s %s\n' "$1" "$2"; }
die() { printf 'bootstrap: %s\n' "$1" >&2; exit "${2:-1}"; }

mode=${1:-}
case $mode in
  demo) extras=server ;;
  test | slow | setup) extras=server,moment,search,docs,dev ;;
  edge) extras='' ;;
  *) die 'usage: sh bootstrap.sh demo|test|slow|setup|edge' 2 ;;
esac
stamp=${extras##*,}
stamp=${stamp:-edge}
shift
if [ "$mode" = test ]; then
  say test 'runs the fast tests in two processes: about 6 minutes on 2 cores, after installing what is missing (minutes, once)'
  say '' 'left out: sh bootstrap.sh slow (every method with every executor and backbone, whole clusters), pytest -m gpu'
fi
venv=${RELIEF_VENV:-.venv}
py=$venv/bin/python
started=$(date +%s)

# The interpreter: an environment that is already there wins; otherwise PYTHON or python3 makes one.
new_enough='import sys; raise SystemExit(sys.version_info < (3, 10))'
version='import platform; print(platform.python_version())'
if [ ! -e "$venv" ]; then
  base=${PYTHON:-python3}
  command -v "$base" >/dev/null 2>&1 || die "'$base' is not a command. Install Python 3.10 or newer, or name one: PYTHON=/path/to/python3"
  "$base" -c "$new_enough" || die "'$base' is $("$base" -V 2>&1); 3.10 or newer is needed. Name another one: PYTHON=/path/to/python3"
  # A torch that the interpreter has (a Jetson's vendor build, say) must stay in use: let the environment see it.
  see=''
  if "$base" -c 'import torch' >/dev/null 2>&1; then see=--system-site-packages; fi
  "$base" -m venv $see "$venv" || { rm -rf -- "$venv"; die "'$base -m venv' failed. On Debian and Ubuntu: apt install python3-venv"; }
fi
"$py" -c "$new_enough" 2>/dev/null || die "$venv holds no working Python 3.10 or newer. Remove that folder, then run this again"
say python "$("$py" -c "$version") in $venv"

# Installed already? The stamp holds a digest of everything that decides what is installed.
digest=$(cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
stamped() { [ -f "$venv/.relief-$1" ] && [ "$(cat "$venv/.relief-$1")" = "$digest" ]; }

log=$venv/bootstrap.log
# What it is doing, every few seconds until this script's own process or the installation is over.
watch() {
  while kill -0 $$ 2>/dev/null && sleep 5 >/dev/null 2>&1; do
    now=$(tr '\r' '\n' <"$log" 2>/dev/null | grep -oE '(Collecting|Downloading|Building|Installing|Prepar|Resolv)[^(]*' | tail -n 1 | cut -c1-68)
    if [ -n "$now" ] && [ "$now" != "${last:-}" ]; then last=$now; say '' "$now"; fi
  done
}
# uv, where it is on the PATH, takes a fifth of pip's time. It reads none of pip's settings and knows no packages outside
# the environment: with either of them pip it is.
installer() {
  if [ "$mode" != edge ] && command -v uv >/dev/null 2>&1 && [ -z "$("$py" -m pip config list 2>/dev/null)" ] &&
    ! grep -q 'include-system-site-packages = true' "$venv/pyvenv.cfg"; then
    echo uv
  else
    echo pip
  fi
}
install() {
  : >"$log"
  watch &
  watcher=$! failed=0
  if [ "$(installer)" = uv ]; then
    uv pip install --python "$py" "$@" >"$log" 2>&1 || failed=1
  else
    "$py" -m pip install --progress-bar off "$@" >"$log" 2>&1 || failed=1
  fi
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [ $failed = 0 ] || {
    tail -n 15 "$log" >&2
    die "$(installer) failed (whole output: $log). Common reasons: no network or index, no wheel for this Python or platform, a full disk"
  }
}

# Echoes the installed version of torch, or nothing.
torch_version() { "$py" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || true; }

# momentfm's exact pins fit nothing else that is installed: without them, then one forward pass to see that it works.
add_moment() {
  say momentfm 'installing without its own pins'
  install --no-deps momentfm==0.1.4
  forward='import torch
from relief_ray.models.backbone import InputShape
from relief_ray.models.moment.backbone import MomentConfig
shape = InputShape(channels=(("acc", 3),), window=32, num_classes=2)
backbone = MomentConfig(size="tiny").build(shape, 0)
assert backbone.forward({"acc": torch.zeros(1, 3, 32)}).shape == (1, 2)'
  "$py" -c "$forward" >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    die "momentfm does not run on the packages here (whole output: $log)"
  }
}

# A device with a GPU computes with its vendor's torch: an index's build for aarch64 brings a CUDA of its own (13), which
# the driver of JetPack 6 cannot run. Only a Jetson has this file.
tegra=${RELIEF_TEGRA:-/etc/nv_tegra_release}
vendor='Install the build of NVIDIA for this JetPack first, for the interpreter that PYTHON names (docs/jetson.md)'
sees_gpu() { "$py" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' >/dev/null 2>&1; }

before_edge() {
  torch_before=$(torch_version) gpu_before=no
  if sees_gpu; then gpu_before=yes; fi
  if [ -e "$tegra" ] && [ $gpu_before = no ]; then
    if [ -z "$torch_before" ]; then die "this Jetson has no torch in $venv. $vendor"; fi
    die "torch $torch_before in $venv sees no GPU, on a Jetson: it is not the vendor's build. Remove $venv. $vendor"
  fi
}

after_edge() {
  now=$(torch_version)
  if [ $gpu_before = yes ] && ! sees_gpu; then
    die "torch $now sees no GPU any more; $torch_before did before this installation. Remove $venv. $vendor"
  fi
  "$py" -c 'import numpy, torch; torch.from_numpy(numpy.ones(1))' >"$log" 2>&1 || {
    tail -n 3 "$log" >&2
    die "torch $now does not work with the numpy here; older builds need: $py -m pip install 'numpy<2'"
  }
  if [ $gpu_before = yes ]; then say gpu "torch $now sees it"; else say gpu 'none: this device computes on its processor'; fi
}

set_up() {
  if [ "$mode" = edge ]; then before_edge; fi
  torch=$(torch_version)
  if [ -n "$torch" ]; then
    say torch "$torch is installed and kept"
  else
    say torch 'installing (the largest part; for a smaller build without CUDA see docs/index.md, "Installing")'
    install "$(sed -n '/^torch==/p' constraints.txt)"
    torch=$(torch_version)
  fi
  # The tested set, but for torch: whatever is installed now is what everything else has to fit.
  { sed '/^torch==/d' constraints.txt; echo "torch==$torch"; } >"$venv/constraints.txt"
  say packages "installing relief-ray${extras:+[$extras]}"
  install --constraint "$venv/constraints.txt" --editable ".${extras:+[$extras]}"
  if [ "$mode" = edge ]; then after_edge; fi
  say kernels "$("$py" -m relief_ray.kernels)"
  printf '%s\n' "$digest" >"$venv/.relief-edge"
  if [ -n "$extras" ]; then printf '%s\n' "$digest" >"$venv/.relief-server"; fi
  if [ "$extras" = server,moment,search,docs,dev ]; then
    add_moment
    printf '%s\n' "$digest" >"$venv/.relief-dev"
  fi
}

if stamped "$stamp"; then say packages 'up to date'; else set_up; fi
say ready "$(du -sm "$venv" | cut -f1) MB in $venv, $(($(date +%s) - started)) s"

case $mode in
  demo)
    "$venv/bin/relief-ray" run demo "$@"
    ;;
  edge) say next "$venv/bin/relief-ray cluster join HEAD --type a|b|c" ;;
  # Two processes, a file's tests in one of them; tests on the shared Ray cluster are all in one (tests/conftest.py).
  test) exec "$py" -m pytest -n 2 --dist loadfile "$@" ;;
  slow) exec "$py" -m tests.slow "$@" ;;
esac
