"""The rules of one attachment's stream: values in, values out, without I/O, tasks or clocks."""
