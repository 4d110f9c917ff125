"""Float recurrent layers (LSTM, GRU, simple RNN) as a single operator that loops over its steps, for every format's
reader.
"""
