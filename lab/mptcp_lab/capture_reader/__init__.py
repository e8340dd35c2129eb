"""`lab/read-capture`: what the sniffer would have published for a capture file.

stored           the bytes of a file, decompressed
capture_file     frames of pcap and pcapng files
encapsulation    the TCP segment in a frame, however it is wrapped
capture_record   what the sniffer's tracker reports, kept
capture_reading  reads a file and prints the record
"""
