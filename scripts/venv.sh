# Sourced by the scripts beside it, from the root of the repository:
#
#   make_venv EXTRAS    makes .venv with nnmpi (editable) and these extras in it,
#                       "" or names separated by commas, where that is not done already
#
# and then puts .venv/bin, with its python and mpirun, first on PATH.
#
# .venv/nnmpi-stamp says what is in there: a key of the place and of the files that
# name the requirements, then the extras. It reads "unfinished" while work goes on,
# so whatever an interruption leaves behind is recognised and made anew.

unset PYTHONHOME # it would send the environment's python elsewhere

# Open MPI refuses to start as root unless told twice that this is meant.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

make_venv() {
    local path
    for path in . .venv quickstart .*_cache; do
        if [ -e "$path" ] && [ ! -w "$path" ]; then
            echo "$(id -un) may not write $PWD/$path: another user made it, who can also remove it" >&2
            return 1
        fi
    done

    # Two scripts started together take turns, where the system has flock.
    (
        if command -v flock >/dev/null; then
            flock 9 || true
        fi
        _make_venv "$1"
    ) 9<setup.cfg
    export PATH="$PWD/.venv/bin:$PATH"
}

_make_venv() {
    local extras="$1" stamp=.venv/nnmpi-stamp key found have python output
    key=$(_venv_key)
    found=$(cat "$stamp" 2>/dev/null || true)
    have="${found#* }"
    if [ "${found%% *}" = "$key" ] && _includes "$have" "$extras" && _venv_works; then
        return
    fi
    if { [ -e .venv ] || [ -L .venv ]; } && ! _venv_usable "$found" "$key"; then
        echo "making .venv anew: this one is unfinished, broken or from another place"
        # bin first: what an interrupted rm leaves must not pass for an environment
        output=$(rm -rf .venv/bin .venv 2>&1) || _venv_failed "${output##*$'\n'}" "rm -rf .venv"
        found=""
    fi
    if [ ! -e .venv ]; then
        python=$(_find_python)
        mkdir .venv
        echo unfinished >"$stamp"
        output=$("$python" -m venv .venv 2>&1) || _venv_failed "$output" "$python -m venv .venv"
    fi
    echo unfinished >"$stamp"
    echo "installing nnmpi${extras:+[$extras]} into .venv ..."
    output=$(.venv/bin/python -m pip install --disable-pip-version-check --no-input \
        --editable ".${extras:+[$extras]}" 2>&1) || _venv_failed "$output" "pip install"
    if [ "${found%% *}" = "$key" ]; then
        extras="${have:+$have,}$extras" # the same requirements as before, so what was there still counts
    fi
    echo "$key $extras" >"$stamp"
}

# Two checksums, "place-requirements"; cksum is the one tool for it that is everywhere.
_venv_key() {
    local place requirements
    place=$(pwd -P | cksum)
    requirements=$(cat setup.cfg pyproject.toml | cksum)
    echo "${place%% *}-${requirements%% *}"
}

# Whether the comma list $1 has every name of the comma list $2.
_includes() {
    local name
    for name in ${2//,/ }; do
        case ",$1," in
        *",$name,"*) ;;
        *) return 1 ;;
        esac
    done
}

# Whether to build on the .venv there is: not if its stamp says that it is unfinished
# or was made in another place, to which its scripts still point. One without a stamp
# is somebody's own, and welcome if it works.
_venv_usable() {
    local found="$1" key="$2"
    if [ -n "$found" ] && [ "${found%%-*}" != "${key%%-*}" ]; then
        return 1
    fi
    _venv_works
}

_venv_works() {
    .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints the first Python that will do, or says in one line what is missing.
_find_python() {
    local python bare=""
    for python in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
                echo "$python"
                return
            fi
            bare="${bare:-$python}"
        fi
    done
    if [ -n "$bare" ]; then
        # Debian and its kin keep ensurepip in a package of its own.
        echo "$bare cannot make virtual environments: apt-get install python3-venv" >&2
    else
        echo "nnmpi needs Python 3.11 or newer: install it, or name one, as in PYTHON=/path/to/python3 $0" >&2
    fi
    return 1
}

_venv_failed() {
    printf '%s\n' "$1" >&2
    echo "$2 failed; what it said is above" >&2
    exit 1
}
