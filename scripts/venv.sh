# Sourced by the other scripts, from the root of the repository:
#
#   make_venv EXTRAS    makes .venv with nnmpi (editable) and these extras ("" or names
#                       separated by commas), unless it exists already; kernels are compiled
#                       for this processor or, with the extra `test`, for all
#
# and then puts .venv/bin, with its python and mpirun, first on PATH.
#
# .venv/nnmpi-stamp describes the content: a checksum of the path and of the files with the
# requirements and the kernels, then the extras. It is "unfinished" during installation, so that
# an interrupted installation is recognised and repeated.

unset PYTHONHOME # it would override the location of the environment

# Open MPI refuses to run as root unless both variables are set.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

make_venv() {
    local path
    for path in . .venv quickstart .*_cache; do
        if [ -e "$path" ] && [ ! -w "$path" ]; then
            echo "$(id -un) cannot write $PWD/$path, which another user made: ask them to remove it" >&2
            return 1
        fi
    done

    # A lock against a second script, where the system has flock.
    (
        if command -v flock >/dev/null; then
            flock 9 || true
        fi
        _make_venv "$1"
    ) 9<setup.cfg
    export PATH="$PWD/.venv/bin:$PATH"
}

_make_venv() {
    local extras="$1" stamp=.venv/nnmpi-stamp key found have python output kernels sets=native
    key=$(_venv_key)
    found=$(cat "$stamp" 2>/dev/null || true)
    have="${found#* }"
    if [ "${found%% *}" = "$key" ] && _includes "$have" "$extras" && _venv_works; then
        return
    fi
    if { [ -e .venv ] || [ -L .venv ]; } && ! _venv_usable "$found" "$key"; then
        echo "making .venv again: it is unfinished, broken or from another path"
        # bin first: after an interrupted rm the rest must not look like an environment
        output=$(rm -rf .venv/bin .venv 2>&1) || _venv_failed "${output##*$'\n'}" "rm -rf .venv"
        found=""
    fi
    if [ ! -e .venv ]; then
        python=$(_find_python)
        mkdir .venv
        echo unfinished >"$stamp"
        _venv_step "making .venv" "$python" -m venv .venv
    fi
    echo unfinished >"$stamp"
    case ",$extras," in
    *,test,*) sets="" ;; # tests run the kernels of every set
    esac
    # Without bytecode: most is never needed, and Python makes the rest when it imports, unless
    # PYTHONDONTWRITEBYTECODE is set. PIP_COMPILE also holds for the environment in which pip builds.
    # Kernels are compiled meanwhile: pip keeps one core busy.
    NNMPI_BUILD="${NNMPI_BUILD-$sets}" _build_kernels >.venv/kernels.log 2>&1 &
    kernels=$!
    NNMPI_BUILD=none _venv_step \
        "installing nnmpi${extras:+[$extras]} into .venv, with kernels" \
        env PIP_COMPILE=0 .venv/bin/python -m pip install --disable-pip-version-check \
        --no-input ${PYTHONDONTWRITEBYTECODE:+--compile} --editable ".${extras:+[$extras]}"
    wait "$kernels" || true # without kernels NumPy computes
    if [ "${found%% *}" = "$key" ]; then
        extras="${have:+$have,}$extras" # same requirements, so earlier extras are still installed
    fi
    echo "$key $extras" >"$stamp"
}

# Builds the kernels in place, with packages of their own in .venv/build, which it removes.
_build_kernels() {
    local build=.venv/build
    rm -rf "$build"
    .venv/bin/python -m pip install --disable-pip-version-check --no-input \
        --target "$build" "setuptools>=77" "numpy>=2.0" &&
        PYTHONPATH="$build" .venv/bin/python setup.py build_ext --inplace \
            --build-lib "$build/lib" --build-temp "$build/temp"
    rm -rf "$build"
}

# Two checksums, "path-requirements"; cksum is the only such tool on every system.
_venv_key() {
    local place requirements
    place=$(pwd -P | cksum)
    requirements=$(cat setup.cfg pyproject.toml setup.py nnmpi/arrays/native/*.[ch] | cksum)
    echo "${place%% *}-${requirements%% *}"
}

# Succeeds if the comma-separated list $1 contains every name of the list $2.
_includes() {
    local name
    for name in ${2//,/ }; do
        case ",$1," in
        *",$name,"*) ;;
        *) return 1 ;;
        esac
    done
}

# Succeeds if the existing .venv can be used: not if its stamp says that it is unfinished or
# was made at another path, to which its scripts still point. A .venv without a stamp was
# made by the user, and is used if it works.
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

# Prints the first suitable Python, or what is missing.
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
        # Debian and its derivatives have ensurepip in a separate package.
        echo "$bare cannot make virtual environments: apt-get install python3-venv" >&2
    else
        echo "nnmpi needs Python 3.11 or newer: install it, or name one, as in PYTHON=/path/to/python3 $0" >&2
    fi
    return 1
}

# Prints the words and runs the command after them, whose output is shown only if it fails; on a
# terminal the seconds that it takes follow, on the same line if both fit 80 columns.
_venv_step() {
    local words="$1" output status=0 clock="" start=$SECONDS
    shift
    if [ -t 1 ]; then
        while kill -0 $$ 2>/dev/null; do # until this script ends, if Ctrl-C does not end it
            printf '\r%s ... %d s' "$words" $((SECONDS - start))
            sleep 1
        done 9>&- &
        clock=$!
    else
        echo "$words ..."
    fi
    output=$("$@" 2>&1) || status=$?
    if [ -n "$clock" ]; then
        kill "$clock" && wait "$clock" 2>/dev/null || true
        printf '\r%s ... %d s\n' "$words" $((SECONDS - start))
    fi
    [ "$status" -eq 0 ] || _venv_failed "$output" "$*"
}

_venv_failed() {
    printf '%s\n' "$1" >&2
    echo "$2 failed, see its output above" >&2
    exit 1
}
