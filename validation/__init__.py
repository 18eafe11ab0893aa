"""The scoreboard: forecasts held against published measurements, source by source.

    table_of_runs = published.read()            # the rows of calibration/published/runs.csv
    case = rows.convert(table_of_runs[0])       # a run, or the stated reason why the row is not scored
    board = score.scoreboard(table_of_runs)     # simulated and scored, per source
    print(table.text(board))

Nothing here tunes anything: a row becomes a run by rules written down in `conventions`, the run is simulated with the
profile its cluster names, and the difference is reported. Only step time (or tokens/s) and memory are compared, never a
printed TFLOP/s or MFU: those rest on conventions that differ by a third between sources.
"""
