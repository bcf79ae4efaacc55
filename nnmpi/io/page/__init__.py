"""The page of runs: one HTML file, which needs no network, made from their logs and traces.

    logs ───► runs.py   the values that the page shows of a run
    traces ─► page.py   the spans of steps, as columns; all as JSON, in page.html with page.css,
                        page.js, uplot/

`--report`, `nnmpi.report` and `nnmpi.watch` write the same page; `page.js` draws it.

Bytes and messages are those of `Comm.ledger` in the first step on a full batch that is not the
first step of the run; values that ZeRO gathers during the next step count for the step that has
updated them, and messages between steps are not counted. Measured memory is the largest growth of a
rank's process (its resident set, on Linux) since before the model was made; of ranks with equal
work, the one with the largest growth is shown.

Names in logs are shown as text and never as HTML, and the content security policy allows only the
page's own scripts and addresses. Logs may have 100 MB, traces 500 MB; of a trace with more than
200,000 spans only the steps around the one of median length are shown.
"""
