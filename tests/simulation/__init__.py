"""Ranks under a deterministic scheduler: one seed decides who goes on when, and who dies where.

    case        what happens in a run: a layout, faults, a seed
    scheduler   ranks that are threads take turns; messages and news travel as the seed says
    layouts     what is trained
    marks       places in the program from which faults count
    held        what ranks held when they met to recover, and which versions that makes whole
    run         a run under a case, and what is left of it
    oracles     what must hold of that, each a promise of faults.md here
    disk        a disk under checkpoints: what may be there after a power cut at any operation
    files       what must hold of that
    draw        the case of a seed
    exhaustive  the cases with one death at every operation, noticed in each way
    shrink      the smallest case that fails in the same way
    mutants     defects that cases have to find, and the search for such cases
    mutant_table  all of them, in mutant_table.toml, each with the case that finds it

A failure is repeated by `scripts/explore --seed N`.
"""
