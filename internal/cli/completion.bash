# Completion of trellis for bash 4.3 or later; it needs nothing but bash.
# The words come from `trellis __complete`: one a line, perhaps with a tab and a
# description behind, and last ":" with a sum of the bits below.

_trellis_complete() {
    local -r failed=1 no_space=2 no_file=4 extensions=8 directories=16
    local i word rest=$COMP_LINE args=() out=()

    # Bash cuts words at ":" and "=" as well: what no blank precedes goes together.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $rest == [[:blank:]]* ]]; then
            args+=("$word")
        else
            args[-1]+=$word
        fi
        rest=${rest#"${rest%%[![:blank:]]*}"}
        rest=${rest#"$word"}
    done
    local cur=${args[-1]}

    mapfile -t out < <("${args[0]}" __complete "${args[@]:1}" 2>/dev/null)
    ((${#out[@]} > 0)) || return
    local -i bits=${out[-1]#:}
    unset 'out[-1]'
    COMPREPLY=()
    ((bits & failed)) && return

    if ((bits & (extensions | directories))); then
        local wanted=" ${out[*]} "
        while IFS= read -r word; do
            if [[ -d $word ]] || { ((bits & extensions)) && [[ $wanted == *" ${word##*.} "* ]]; }; then
                COMPREPLY+=("$word")
            fi
        done < <(compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
        return
    fi

    # Bash replaces only what follows the last ":" or "=" that it cuts at.
    local cut="" description
    if [[ $cur == *[:=]* ]]; then
        cut=${cur%"${cur##*[:=]}"}
        [[ ${cut: -1} == [$COMP_WORDBREAKS] ]] || cut=""
    fi
    local words=() shown=()
    for word in "${out[@]}"; do
        description=""
        [[ $word == *$'\t'* ]] && description=${word#*$'\t'}
        word=${word%%$'\t'*}
        [[ $word == "$cur"* ]] || continue
        words+=("${word#"$cut"}")
        if [[ -n $description ]]; then
            printf -v word '%-16s (%s)' "$word" "$description"
        fi
        shown+=("$word")
    done
    # COMP_TYPE is "?" when the words are only listed, and nothing is inserted.
    if ((${#words[@]} > 1 && ${COMP_TYPE:-9} == 63)); then
        COMPREPLY=("${shown[@]}")
    else
        COMPREPLY=("${words[@]}")
    fi
    ((bits & no_space)) && compopt -o nospace 2>/dev/null
    ((bits & no_file)) && compopt +o default 2>/dev/null
    return 0
}

complete -o default -F _trellis_complete trellis
