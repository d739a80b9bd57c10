"""Calibration: measure this machine's devices and links, write a hardware file and a profile.

`automap.calibrate.calibration`  calibrating this machine: devices -> profile and hardware file
`automap.calibrate.grid`         what is measured on every machine: shapes of dots, sizes of
                                 streams and of collectives, as tables
`automap.calibrate.hardware`     a profile -> the hardware file: a topology in TOML, each
                                 number with its source
`automap.calibrate.session`      a calibration: signatures to measure -> a profile, with what
                                 could not be measured
`automap.calibrate.stages`       stages of operators measured on this machine's devices, as a
                                 search asks for them
"""
