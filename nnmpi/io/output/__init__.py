"""The output of a run: its events as text, as JSON and as pictures, and its progress.

Events and their fields:

    start        model, data, steps, epochs, layout; `kinds`, groups of ranks with equal roles, with
                 the bytes that they hold and send; `blocks`, which ranks have which layers; the cut
                 of the pipeline and the all-reduce, also if measured; every option; versions;
                 `blas`: kernels and threads on rank 0, and the reason for their number; `native`:
                 the compiled kernels, `none` if NumPy computes; `advice`: causes that make the run
                 slow or a loaded model wrong, and remedies; hosts with their ranks
    resumed      the same of a resumed run, its `step`, `checkpoint`, and `notes` on differences
    checkpoint   `step`, `path`, `bytes`, `seconds`, and seconds that training has `waited`; or the
                 `problem` because of which it was not written
    recovered    `lost` ranks, `step`, `seconds`, `steps_again` (the number of repeated steps);
                 `ranks`, `spare`, `layout`
    step         `step` of `steps`, `epoch` with a fraction; `loss` and `gradient_norm` before
                 clipping, means since the last such event; `lr`, `seconds`, `samples_per_second`
    evaluation   within an epoch: `step`, `epoch`, `test_loss` and metrics
    epoch        `loss` and metrics, `seconds`, `lr`, `mean_gradient_norm`, `samples_per_second` so
                 far, `epoch_samples_per_second`
    passes       for each stage of rank 0: `replayed`, or the `reason` why its passes are not
    progress     after 10 seconds without an event, if there is no progress bar
    sample       the `text` that a language model generates after a `step`
    verify       differences of a step from that of a reference
    done, stopped, suspended, failed    the last event; `measured`: the bytes that each rank has
                 `sent` in a step, and its `memory_bytes`
    complete     the only event of --resume if the run had ended before

With parameter servers, PipeDream and averaged replicas no rank knows the norm of the whole
gradient. With parameter servers the loss of a step is that of all samples that rank 0 has received
results of since the last event. With --sync local and gossip, the local steps until replicas
exchange parameters count as one step.
"""

from nnmpi.io.output.messages import Event as Event
from nnmpi.io.output.report import LostOutputError as LostOutputError
from nnmpi.io.output.report import NullReport as NullReport
from nnmpi.io.output.report import Report as Report
from nnmpi.io.output.report import open_report as open_report
