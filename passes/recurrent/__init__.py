"""Float recurrent layers (LSTM, GRU, simple RNN) as a single operator that loops over the steps, for every format's
reader.
"""
