"""The C types of the classes in `decode.py`, which Cython reads with it. What has none is a Python object."""

cimport cython

@cython.final
cdef class _Validity:
    cdef object buffer
    cdef unsigned char* bits
    cdef Py_ssize_t nulls
    cdef inline void clear(self, Py_ssize_t slot) noexcept nogil
    cdef finish(self)

@cython.final
cdef class _Binary:
    cdef _Validity validity
    cdef object data_buffer, ends_buffer
    cdef unsigned char* data
    cdef int* ends
    cdef Py_ssize_t rows, used
    cdef inline void append(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t length) noexcept nogil
    cdef finish(self, kind)

@cython.final
cdef class _Headers:
    cdef _Validity validity
    cdef _Binary keys, values
    cdef object ends_buffer
    cdef int* ends
    cdef Py_ssize_t capacity
    cdef bint malformed
    cdef void append(
        self, Py_ssize_t row, const unsigned char* source, Py_ssize_t at, Py_ssize_t end, long long count
    ) noexcept nogil
    cdef finish(self, Py_ssize_t rows)

@cython.final
cdef class _Columns:
    cdef Py_ssize_t rows, row_capacity
    cdef Py_ssize_t headroom  # bytes of records that may still be appended
    cdef _Binary keys, values
    cdef _Headers headers
    cdef object offsets_buffer, times_buffer, time_types_buffer
    cdef long long* offsets
    cdef long long* times
    cdef int* time_types
    cdef bint has_keys, has_values, has_headers, has_offsets, has_times, has_time_types, nulls_times
    cdef _Validity times_validity
    cdef inline int append(
        self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end, Py_ssize_t length,
        long long offset, long long base_time, long long time_delta
    ) noexcept nogil
    cdef void fill_time_types(self, Py_ssize_t first, int time_type) noexcept nogil

cdef class _Plan:
    cdef str place
    cdef long long start, stop
    cdef long long position  # the offset to read next, after what has been filled
    cdef bint finished  # nothing is left to plan
    cdef Py_ssize_t max_bytes, max_rows, max_unpacked
    cdef object data, view
    cdef const unsigned char* raw
    cdef Py_ssize_t size
    cdef Py_ssize_t walked  # bytes of the data whose batches have been planned or skipped
    cdef long long planned  # the position after those
    cdef long long floor  # the least base offset that the next batch may have
    cdef list aborted  # what of the aborted list is still ahead, last first; None under read_uncommitted
    cdef set aborting  # producers within an aborted transaction
    cdef object arena_buffer
    cdef const unsigned char* arena
    cdef Py_ssize_t arena_used
    cdef object table_buffer
    cdef long long* table
    cdef Py_ssize_t table_capacity, batches, current, bytes_planned, rows_planned
    cdef Py_ssize_t last_packed  # bytes of the last batch that was decompressed, before and after
    cdef Py_ssize_t last_unpacked
    cdef Py_ssize_t needed  # bytes of a record that found no space in empty columns
    cdef object failure
    cdef void set_arena(self, buffer)
    cdef bint plan_next(self)
    cdef Py_ssize_t batch_end(self, Py_ssize_t at)
    cdef void check(self, Py_ssize_t at, Py_ssize_t end, long long base, long long last)
    cdef bint is_wanted(self, Py_ssize_t at, Py_ssize_t end, long long base, long long last)
    cdef bint is_abort_marker(self, Py_ssize_t at, Py_ssize_t end)
    cdef bint add(self, Py_ssize_t at, Py_ssize_t end, long long base, long long last)
    cdef bint has_headroom(self, long long count, Py_ssize_t size)
    cdef Py_ssize_t expected(self, Py_ssize_t packed)
    cdef Py_ssize_t unpack(self, Py_ssize_t at, Py_ssize_t end, int codec)
    cdef void grow_arena(self)
    cdef void refuse(self, Py_ssize_t at, str what)
