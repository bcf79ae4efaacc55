"""The page of runs: one HTML file, which needs no network, made from their logs and traces.

    logs ───► runs.py   what the page says of a run, as values
    traces ─► page.py   the spans of steps, as columns; all as JSON, in page.html with page.css,
                        page.js, uplot/

`--report`, `nnmpi.report` and `nnmpi.watch` write the same page; `page.js` draws it.
"""
