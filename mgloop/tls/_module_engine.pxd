# SPDX-License-Identifier: GPL-2.0-only
"""Declare the engines that call the `ssl` module."""

from mgloop.tls._engine cimport Engine


cdef class ModuleEngine(Engine):
    cdef object sslobj_read
    cdef object sslobj_write
    cdef object sslobj_pending      # None in an ObjectEngine
    cdef object incoming_write
    cdef object outgoing_read

    cdef object decrypt_one(self, Py_ssize_t capacity)
    cdef Py_ssize_t write_object(self, object data, Py_ssize_t size) except -1


cdef class ObjectEngine(ModuleEngine):
    pass


# Return the engine for *sslobj*, which reads from *incoming* and writes to *outgoing*.
cdef ModuleEngine create_module_engine(object sslobj, object incoming, object outgoing)
