"""The timeline: what each stream of each rank did when, in one format for a forecast and for a measurement.

    timeline = Timeline.from_rows(header, rows)      # or from_columns, 20 times faster for a whole program
    save(timeline, "timeline/step-000097.json.gz")   # same rows, same bytes

Made from it: a collective's wait apart from its transfer (`program.timeline.skew`); both timelines side by side in
Perfetto (`program.timeline.chrome_trace`).

A row is one instruction of one rank, named by the program's global instruction id, so that prediction and measurement
join on (rank, id). Rows are stored as columns: numbers in numpy arrays, words as codes into one table. Times are
seconds on the clock of the first rank; `header.clocks` says what was subtracted from each rank's own clock to get
there, and how far off that may be.
"""

from program.timeline.file import load, save
from program.timeline.instruction_rows import NO_TIME, TIMES, Clock, Header, Row, Timeline
from program.timeline.merging import merge

__all__ = ["NO_TIME", "TIMES", "Clock", "Header", "Row", "Timeline", "load", "merge", "save"]
