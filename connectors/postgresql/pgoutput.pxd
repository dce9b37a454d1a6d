"""The C types of the classes in `pgoutput.py`, which Cython reads with it. What has none is a Python object."""

cimport cython


@cython.final
cdef class _Space:
    cdef object buffer
    cdef Py_ssize_t capacity
    cdef unsigned char* bytes
    cdef long long* longs
    cdef int grow(self, Py_ssize_t size) except -1
    cdef finish(self, Py_ssize_t size)

@cython.final
cdef class _Longs:
    cdef _Space space
    cdef Py_ssize_t rows
    cdef inline int append(self, long long value) except -1
    cdef finish(self, kind)

@cython.final
cdef class _Texts:
    cdef _Space validity, data
    cdef _Longs ends, unchanged
    cdef Py_ssize_t rows, nulls, used
    cdef inline int append(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t length) except -1
    cdef inline int append_null(self) except -1
    cdef finish(self)

@cython.final
cdef class _Tuples:
    cdef _Longs changes
    cdef list columns
    cdef finish(self)

@cython.final
cdef class _Changes:
    cdef object relation
    cdef int width
    cdef _Longs operations, lsns, xids, times, places
    cdef _Tuples new, old
    cdef start(self)
    cdef finish(self)

@cython.final
cdef class Decoder:
    cdef readonly dict types
    cdef long long batch_bytes, transaction_bytes
    cdef object spool
    cdef list pending, retired, messages
    cdef long long pending_bytes
    cdef bint is_pending_open
    cdef dict relations, streams
    cdef object stream, ended, partition
    cdef long long last_oid, described
    cdef _Changes last
    cdef long long place, taken_bytes, lsn, position, given, xid, time
    cdef bint is_open, is_replay
    cdef bytes message
    cdef const unsigned char* raw
    cdef Py_ssize_t at, end
    cdef refused(self, str what)
    cdef inline Py_ssize_t integer(self, int size) except? -1
    cdef inline Py_ssize_t natural(self) except? -1
    cdef inline Py_ssize_t log_position(self) except? -1
    cdef Py_ssize_t timestamp(self) except? -1
    cdef inline int byte(self) except -1
    cdef str string(self)
    cdef int read(self, bytes message) except -1
    cdef int begin(self) except -1
    cdef int commit(self) except -1
    cdef int change(self, int kind) except -1
    cdef int row(self, int kind) except -1
    cdef _Changes changes(self)
    cdef Py_ssize_t add(self, _Changes changes, int kind) except -1
    cdef int values(self, _Tuples rows, long long number, int width) except -1
    cdef int rare(self, int kind) except -1
    cdef int relation(self) except -1
    cdef int describe(self, relation) except -1
    cdef int note_partition(self, long long oid) except -1
    cdef int logical_message(self) except -1
    cdef int keep(self, int kind, stream) except -1
    cdef int start_stream(self) except -1
    cdef int commit_stream(self) except -1
    cdef int abort_stream(self) except -1
